"""One run of one arm: the product's own loop in one process, and hooks that measure what the experiment asks."""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from experiments.judge_data import add_labelled
from experiments.one_process import OneProcess
from experiments.record import KEPT, Models, Result, Tell, silent
from experiments.rewriters import REWRITERS
from experiments.settings import Arm, Settings
from experiments.tasks import pool_request
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from services.trainer.loop.measures import VoteHistory
from triforge.algorithms.credit import accuracy
from triforge.algorithms.theory import estimate
from triforge.config import parse
from triforge.errors import TrainerError
from triforge.methods import Method
from triforge.types import JudgedGroup, Task

_LATE = 5  # training steps at the end over which step measures are averaged
_ALL = 1_000_000
_CURRENT: ContextVar[Run] = ContextVar("run")
METHOD = Method(name="experiment", loop="experiments.loop:current_run")


def current_run(context: MethodContext, _: object) -> Run:
    """Return the run of this process as the hooks of its loop."""
    run = _CURRENT.get()
    run.run = context
    return run


def read_task(task_id: str) -> Task:
    """Return a task of this process's run."""
    return _CURRENT.get().task(task_id)


class Run(LoopHooks):
    """One run, and the hooks of its loop.

    Args:
        name: of the arm.
        arm: the arm.
        seed: of tasks and run.
        settings: how much is played.
        models: what it starts from.
        folder: for its database and artifacts.
        labelled: file for the labelled rollouts of the training steps, as chats for a judge; None writes none.
        tell: gets each step and evaluation at once, then the rest: a line of the run's file each (`jobs.read`).
    """

    def __init__(
        self,
        name: str,
        arm: Arm,
        seed: int,
        settings: Settings,
        models: Models,
        folder: Path,
        tell: Tell,
        labelled: Path | None = None,
    ) -> None:
        self._name, self._arm, self._seed, self._settings = name, arm, seed, settings
        self._models, self._folder, self._tell = models, folder, tell
        self._labelled = labelled
        self._paths = {
            "policy": str(models.policy),
            "reward": str(models.reward),
            "rewriter": str(models.rewrites or ""),
        }
        self._document = self._run_document()
        self._config = parse(self._document)
        self._algorithm = self._config.algorithm.resolved
        self._votes = VoteHistory({}, self._algorithm)
        self._evaluation: dict[str, float] = {}  # the latest
        self._result = Result(name, seed)
        self._rewriter = REWRITERS.get(arm.config.get("rewriter", ""))

    def _run_document(self) -> dict[str, Any]:
        """Return the document of the run: the arm's, with this module's hooks and an evaluation of all held-out tasks."""
        document = self._settings.document(self._arm, self._seed, self._paths)
        heldout = sum(kind.heldout for kind in self._settings.pool())
        document["run"] |= {"eval_every": document["run"]["steps"], "eval_tasks": heldout}
        document["methods"] = {**document.get("methods", {}), f"{__name__}:METHOD": {}}
        if planted := self._arm.planted:
            right = round(100 * planted.right)
            document["reward"]["kind"] = f"experiments.judging:{planted.asks}_{right}"
        return document

    async def play(self) -> Result:
        """Return the whole run."""
        started, config = time.monotonic(), self._config
        folders = {"policy": config.models.policy.path, "reward": config.models.reward.path}
        if self._models.rewrites and not self._rewriter:
            folders["rewriter"] = str(self._models.rewrites)
        _CURRENT.set(self)
        self._deployment = OneProcess(
            self._folder,
            {role: Path(path) for role, path in folders.items()},
            rewriter=self._rewriter,
            rows=128,
        )
        async with self._deployment:
            request = pool_request(self._settings, self._seed)
            self._pool = (await self._deployment.create_pool(request)).id
            await self._train()
            self._measure()
        self._result.seconds = time.monotonic() - started
        known = ("arm", "seed", "late", "tasks", "seconds")
        self._tell({name: getattr(self._result, name) for name in known})
        return self._result

    async def _train(self) -> None:
        """Run the product's loop to its end.

        Raises:
            TrainerError: the run did not finish.
        """
        run = await self._deployment.train(self._pool, self._document, name=self._name)
        if run.status != "finished":
            raise TrainerError(f"the run is {run.status}, expected finished: {run.reason}")

    def _measure(self) -> None:
        """Fill the parts of the result that are known only at the end."""
        result = self._result
        result.late = self._late()
        result.tasks = self._task_counts()
        tasks = self._accepted()
        result.tasks["accepted_kinds"] = dict(Counter(task.kind for task in tasks.values()))

    # ---- hooks ----

    async def measure(
        self,
        step: int,
        groups: Sequence[JudgedGroup],
        samples: Samples,  # noqa: ARG002
    ) -> Measures:
        """Measure votes, and write what a judge can be taught by."""
        self._votes.measure(step, groups)
        if self._labelled:
            options = dict(self._settings.options)
            await asyncio.to_thread(add_labelled, self._labelled, groups, self.task, options)
        return {}

    async def evaluates(self, step: int) -> bool:
        """Return whether the settings ask for an evaluation after the step."""
        return self._config.run.steps - step in self._settings.late_evals

    def evaluated(self, groups: Sequence[JudgedGroup]) -> Measures:
        """Keep the success of the held-out tasks by mode and kind; the report of the experiment reads it."""
        self._evaluation = {}
        names = [kind.name for kind in self._settings.pool() for _ in range(kind.heldout)]
        for mode in ("sampled", "greedy"):
            parts: dict[str, list[JudgedGroup]] = {"": []}
            for number, group in heldout(groups, mode):
                parts[""].append(group)
                if names[number]:
                    parts.setdefault(f"/{names[number]}", []).append(group)
            played = {name: part for name, part in parts.items() if part}
            self._evaluation |= {f"{mode}{name}": success(part) for name, part in played.items()}
        return {}

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Report the step and its evaluation, after adaptation has counted the step's groups."""
        if step:
            started = time.monotonic()
            await self._deployment.adapted()
            row = {name: measures[name] for name in KEPT if name in measures}
            row |= {f"seconds/{n}": measures.get(f"seconds/{n}", 0.0) for n in ("play", "train")}
            row["seconds/adapt"] = time.monotonic() - started
            if self._config.adaptation.adapts:
                row["tasks/accepted"] = self._task_counts()["proposals"].get("accepted", 0)
            self._result.steps.append(row)
            self._tell({"steps": row})
        if self._evaluation:
            row = {"step": float(step), **self._evaluation}
            self._evaluation = {}
            self._result.evaluations.append(row)
            self._tell({"evaluations": row})
        return {}

    def task(self, task_id: str) -> Task:
        """Return a task version."""
        return self._deployment.tasks.task(task_id)

    # ---- measuring ----

    def _task_counts(self) -> dict[str, Any]:
        """Return proposals by state, and the decisions on null controls."""
        state = self._deployment.tasks.pool(self._pool)
        return {"proposals": state.proposals, "null_control": state.null_control}

    def _accepted(self) -> dict[str, Task]:
        """Return the tasks by which others were replaced, replaced again or not."""
        made = self._deployment.tasks.proposals(self._pool, state="accepted", limit=_ALL).items
        return {name: self.task(name) for name in (str(p.candidate_id) for p in made)}

    def _late(self) -> dict[str, float]:
        """Return the votes over the last steps together, and means of the last steps' measures."""
        theory = estimate(self._votes.before(self._config.run.steps + 1))
        late = {"groups": float(theory.groups)}
        for name in ("p_plus", "p_minus", "mu", "mu_within", "f_ratio"):
            value = getattr(theory, name)
            if value is not None:
                ends = {name: value.value, f"{name}/low": value.low, f"{name}/high": value.high}
                late |= {n: v for n, v in ends.items() if math.isfinite(v)}  # JSON has no infinity
        if theory.one_sided is not None:
            late["one_sided"] = theory.one_sided
        for name in ("success", "in_band", "all_same"):
            values = [s[name] for s in self._result.steps[-_LATE:] if name in s]
            if values:
                late[name] = sum(values) / len(values)
        return late


def heldout(groups: Sequence[JudgedGroup], mode: str) -> Iterator[tuple[int, JudgedGroup]]:
    """Yield the groups of one mode of an evaluation, with the place of each task among the held-out ones."""
    for group in groups:
        *_, played_as, number = group.played.group.group_id.rsplit("-", 2)
        if played_as == mode:
            yield int(number), group


def success(groups: Sequence[JudgedGroup]) -> float:
    """Return the share of the measured episodes that succeed."""
    wins, measured = accuracy([t.outcome.value for g in groups for t in g.played.trajectories])
    return wins / measured


def play(
    name: str,
    arm: Arm,
    seed: int,
    settings: Settings,
    models: Models,
    *,
    tell: Tell = silent,
    labelled: Path | None = None,
) -> Result:
    """Play one run in this process."""
    random.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(
            Run(name, arm, seed, settings, models, Path(folder), tell, labelled).play()
        )
