"""One run of one arm: plan, play, judge, credit, train, serve, adapt, evaluate; the services' own code for each."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import torch

from environments.household.family import FAMILY
from experiments.judging import PlantedJudge, Truth
from experiments.model import LocalModel
from experiments.record import KEPT, Models, Result, Tell, silent
from experiments.rewriters import REWRITERS
from experiments.settings import Arm, Settings
from experiments.tasks import Tasks
from experiments.vote_quality import Row, measures_of, quality, rows_of
from services.env_adapter.adaptation.settings import AdaptSettings, RunOutcome
from services.reward.worker import scorer_of
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from services.trainer.learner.learner import Learner
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.loop.hooks import Methods
from services.trainer.loop.measures import VoteHistory, sample_measures, step_measures
from services.trainer.loop.parts import Parts
from services.trainer.loop.task_source import TaskSource, task_outcome
from triforge.algorithms.credit import accuracy
from triforge.algorithms.theory import estimate
from triforge.config import LearnerSection, parse
from triforge.rollout.episode import judge_task, run_group
from triforge.rollout.live import environment_of
from triforge.rollout.protocols import StepScorer
from triforge.rollout.seeds import derive_seed, nth_seed
from triforge.rollout.window import Offer
from triforge.types import (
    GroupTask,
    JudgedGroup,
    PlannedGroup,
    PlanRequest,
    RunState,
    Task,
    TrainBatch,
    TrainedRole,
    TrainRow,
    Trajectory,
    TrajectoryVotes,
    WeightVersion,
)

_LATE = 5  # training steps at the end over which step measures are averaged


class Run:
    """One run.

    Args:
        name: of the arm.
        arm: the arm.
        seed: of tasks and run.
        settings: how much is played.
        models: what it starts from.
        folder: for its database.
        tell: hears of each step and evaluation at once, then of the rest: a line of the run's file each (`jobs.read`).
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
    ) -> None:
        self._name, self._seed, self._settings, self._given = name, seed, settings, models
        self._tell = tell
        paths = {
            "policy": str(models.policy),
            "reward": str(models.reward),
            "rewriter": str(models.rewrites or ""),
        }
        self._config = parse(settings.document(arm, seed, paths))
        self._algorithm = self._config.algorithm.resolved
        self._votes = VoteHistory({}, self._algorithm)
        self._sampled: list[JudgedGroup] = []  # of the last evaluation
        self._played: dict[str, list[JudgedGroup]] = {}  # in the first and in the last step
        self._versions: dict[TrainedRole, int] = {"policy": 0, "reward": 0}
        reward = Path(self._config.models.reward.path)
        asked = arm.planted is None and self._algorithm.needs_votes
        self._learners: dict[TrainedRole, Learner] = {"policy": self._learner(models.policy)}
        self._acts = self._judges = LocalModel(models.policy, rows=128, device=models.device)
        if asked:
            self._learners["reward"] = self._learner(reward)
            self._judges = LocalModel(reward, rows=128, device=models.device)
        named = REWRITERS.get(arm.config.get("rewriter", ""))
        rewrites = None
        if models.rewrites and not named:
            rewrites = LocalModel(models.rewrites, device=models.device)
        self._models = {m for m in (self._acts, self._judges, rewrites) if m is not None}
        self._rewriter = named or rewrites
        self._tasks = Tasks(folder, settings, seed, self._rewriter)
        self._run = RunState(
            id=f"{name}-{seed}", name=name, pool_id=self._tasks.pool_id, status="running", step=0,
            steps=self._config.run.steps, policy_version=0, reward_version=0, created_at=0.0, updated_at=0.0,
        )  # fmt: skip
        parts: Parts = SimpleNamespace(env_adapter=self._tasks)  # type: ignore[assignment]
        self._env = TaskSource(parts, self._run, self._config)
        self._methods = Methods(parts, self._run.id, self._config, {})
        self._truth = Truth(self._tasks.read)
        options = self._config.env_adapter.options
        self._progress = options.get("labels") == "progress"  # is found after play, see `Truth`
        self._options = {name: value for name, value in options.items() if name != "labels"}
        self._score: StepScorer = scorer_of(self._config.reward.kind)
        if arm.planted is not None:
            self._score = PlantedJudge(arm.planted, self._truth)

    async def play(self) -> Result:
        """Return the whole run."""
        started = time.monotonic()
        result = Result(self._name, self._seed)

        def add(kind: Literal["steps", "evaluations"], found: dict[str, float]) -> None:
            getattr(result, kind).append(found)
            self._tell({kind: found})

        add("evaluations", await self._start())
        for step in range(1, self._config.run.steps + 1):
            add("steps", await self._step(step))
            if self._config.run.steps - step in self._settings.late_evals:
                add("evaluations", await self._evaluate(step))
        result.judged = await self._judge_again()
        result.judge = {
            f"{name}/{who}": value
            for who, rows in result.judged.items()
            for name, value in quality(rows).items()
        }
        result.late = self._late(result)
        result.tasks = self._tasks.counts()
        kinds = [task.kind for task in (await self._tasks.accepted()).values()]
        result.tasks["accepted_kinds"] = dict(Counter(kinds))
        if self._given.strong and self._config.adaptation.adapts:
            result.tasks["solved"] = await self._solved(self._given.strong)
        if self._given.keep:
            shutil.rmtree(self._given.keep, ignore_errors=True)  # of a run that did not end
            self._learners["reward"].publish(self._given.keep, {"run": self._run.id})
        result.seconds = time.monotonic() - started
        rest = ("arm", "seed", "late", "judge", "judged", "tasks", "seconds")
        self._tell({name: getattr(result, name) for name in rest})
        return result

    def _learner(self, folder: Path) -> Learner:
        return Learner.fresh(folder, Ranks(torch.device(self._given.device)))

    def close(self) -> None:
        """Stop the engines."""
        for model in self._models:
            model.stop()
        self._tasks.close()

    # ---- a step ----

    async def _step(self, step: int) -> dict[str, float]:
        started = time.monotonic()
        groups = await asyncio.gather(
            *(self._play_group(task) for task in (await self._env.plan([step]))[step])
        )
        played = time.monotonic()
        self._played = {"first": groups} | self._played | {"last": groups}
        measures = step_measures(
            groups, alpha_low=self._algorithm.alpha_low, alpha_high=self._algorithm.alpha_high
        )
        trust = self._votes.trust(step)
        measures |= self._votes.measure(step, groups) | measures_of(groups)
        sampled = dict(self._versions)
        measures |= await self._train(step, groups, trust)
        trained = time.monotonic()
        if self._config.adaptation.adapts:
            offer = Offer(round=step, step=step, versions=(sampled["policy"], sampled["reward"]))
            settings = AdaptSettings.of(self._config)
            for group in groups:
                outcome = task_outcome(group, offer, run=self._run, config=self._config)
                await self._tasks.adapt(RunOutcome.of(outcome, settings))
            measures["tasks/accepted"] = self._tasks.counts()["proposals"].get("accepted", 0)
        seconds = {"seconds/play": played - started, "seconds/train": trained - played,
                   "seconds/adapt": time.monotonic() - trained}  # fmt: skip
        return {name: measures[name] for name in KEPT if name in measures} | seconds

    async def _play_group(self, group: GroupTask) -> JudgedGroup:
        task = await self._tasks.read(group.task_id)
        votes: dict[str, TrajectoryVotes] = {}

        async def ended(trajectory: Trajectory) -> Trajectory:
            if group.votes and trajectory.measured and trajectory.steps:
                if self._progress:
                    trajectory = await self._truth.labelled(trajectory)
                if group.show_reference:
                    shown = FAMILY.gold(task, self._config.env_adapter.options)
                    trajectory = trajectory.model_copy(update={"reference": tuple(shown or ())})
                job = judge_task(group, trajectory.index)
                votes[trajectory.id] = await self._score(trajectory, job, self._judges.many)
            return trajectory

        played = await run_group(
            lambda: environment_of(group, lambda: self._tasks.make(self._options)),
            self._acts, task, group, ended=ended,
        )  # fmt: skip
        return JudgedGroup(played=played, votes=tuple(votes.get(t.id) for t in played.trajectories))

    async def _train(self, step: int, groups: list[JudgedGroup], trust: float) -> dict[str, float]:
        trainer = self._config.trainer
        samples = build_samples(
            groups,
            SampleOptions(
                algorithm=self._algorithm,
                players={"policy": (self._versions["policy"], limits_of(trainer.policy))},
                judging={"reward": (self._versions["reward"], limits_of(trainer.reward))},
                seed=nth_seed(self._config.run.seed, step),
                trust=trust,
            ),
        )
        measures = sample_measures(samples)
        measures |= await self._methods.more_samples(step, groups, samples)
        roles: tuple[tuple[TrainedRole, list[TrainRow], LearnerSection, str], ...] = (
            ("policy", samples.rows["policy"], trainer.policy, "policy"),
            ("reward", samples.rows["reward"], trainer.reward, "reward"),
        )
        for role, rows, section, prefix in roles:
            if rows:
                batch = await self._methods.batch(step, self._batch(role, step, rows, section))
                report = self._learners[role].train(batch, rows)
                self._versions[role] += 1
                server = self._acts if role == "policy" else self._judges
                await server.serve(self._learners[role].model.module, self._versions[role])
                measures |= {f"{prefix}/{k}": v for k, v in report.metrics.items()}
        return measures

    def _batch(
        self, role: TrainedRole, step: int, rows: list[TrainRow], section: LearnerSection
    ) -> TrainBatch:
        model = getattr(self._config.models, role)
        policy = role == "policy"
        return TrainBatch(
            batch_id=f"{self._run.id}-{step:05d}-{role}", run_id=self._run.id, role=role, step=step,
            initial=WeightVersion(number=0, folder=model.path), uri="memory", num_rows=len(rows),
            start=WeightVersion(number=self._versions[role], folder=model.path),
            num_tokens=sum(len(row.ids) for row in rows),
            algorithm=self._algorithm if policy else self._config.algorithm_of("reward"),
            learner=section, temperature=model.temperature, seed=self._config.run.seed,
        )  # fmt: skip

    # ---- measuring ----

    async def _start(self) -> dict[str, float]:
        """Return the evaluation before training."""
        file = self._given.start
        if file is not None and file.is_file():
            known: dict[str, float] = json.loads(file.read_text())
            return known
        found = await self._evaluate(0)
        if file is not None:
            part = file.with_suffix(f".{os.getpid()}")  # two arms may play it at the same time
            part.write_text(json.dumps(found))
            part.replace(file)
        return found

    async def _evaluate(self, step: int) -> dict[str, float]:
        """Play the held-out tasks; the same seeds every time."""
        pool = self._settings.pool()
        count = sum(kind.heldout for kind in pool)
        wanted = PlanRequest(
            run_id=self._run.id, step=step, kind="evaluate", groups=count, seed=self._seed
        )
        plan = await self._tasks.plan(self._run.pool_id, wanted)
        found: dict[str, float] = {"step": float(step)}
        for mode, rollouts in (("sampled", self._settings.eval_rollouts), ("greedy", 1)):
            tasks = [self._heldout(step, mode, i, g, rollouts) for i, g in enumerate(plan)]
            groups = await asyncio.gather(*(self._play_group(task) for task in tasks))
            parts, rest = {"": groups}, iter(groups)
            for kind in pool:
                part = list(islice(rest, kind.heldout))
                if kind.name and part:
                    parts.setdefault(f"/{kind.name}", []).extend(part)
            for name, part in parts.items():
                wins, measured = accuracy(
                    [t.outcome.value for g in part for t in g.played.trajectories]
                )
                found[f"{mode}{name}"] = wins / measured
            if mode == "sampled":
                self._sampled = list(groups)
        return found

    def _heldout(
        self, step: int, mode: str, index: int, planned: PlannedGroup, rollouts: int
    ) -> GroupTask:
        config = self._config
        return GroupTask(
            group_id=f"{self._run.id}-{step:05d}-{mode}-{index:04d}", run_id=self._run.id, step=step,
            task_id=planned.task_id, purpose=planned.purpose, rollouts=rollouts, votes=0,
            seed=nth_seed(self._seed, index),
            sampling=config.models.policy.sampling(greedy=mode == "greedy"),
            env_adapter=config.env_adapter,
            reward=config.reward,
        )  # fmt: skip

    async def _judge_again(self) -> dict[str, list[Row]]:
        """Return the votes of the first and the last weights on the episodes of the first and the last step.

        Votes of scorers that were not trained are as they were cast.
        """
        found: dict[str, list[Row]] = {}
        for weights in ("first", "last") if self._algorithm.needs_votes else ():
            if self._versions["reward"]:
                learner = self._learners["reward"]
                if weights == "first":
                    learner = self._learner(Path(self._config.models.reward.path))
                await self._judges.serve(learner.model.module, self._versions["reward"])
            for policy, groups in self._played.items():
                if self._versions["reward"]:
                    groups = await asyncio.gather(*map(self._judge, groups))
                found[f"judge_{weights}/policy_{policy}"] = rows_of(groups)
        return found

    async def _judge(self, group: JudgedGroup) -> JudgedGroup:
        """Return the same episodes, judged by the weights that serve now."""
        task, played = group.played.group, group.played.trajectories
        given = await asyncio.gather(
            *(self._score(t, judge_task(task, t.index), self._judges.many) for t in played)
        )
        return JudgedGroup(played=group.played, votes=tuple(given))

    async def _solved(self, folder: Path) -> dict[str, dict[str, list[int]]]:
        """Return what a policy makes of the tasks that were accepted and of those that they began as; see `rate`."""
        model, tasks = (
            LocalModel(folder, rows=128, device=self._given.device),
            await self._tasks.accepted(),
        )
        found: dict[str, dict[str, list[int]]] = {}
        try:
            for name, ids in (("accepted", tasks), ("roots", {t.slot: t for t in tasks.values()})):
                rates = [
                    self.rate(await self._tasks.read(one), self._settings.rollouts, model)
                    for one in ids
                ]
                found[name] = dict(zip(ids, await asyncio.gather(*rates), strict=True))
        finally:
            model.stop()
        return found

    async def rate(self, task: Task, rollouts: int, policy: LocalModel | None = None) -> list[int]:
        """(successes, measured) of fresh rollouts of a policy, the run's own if none is given."""
        config = self._config
        group = GroupTask(
            group_id=f"{self._run.id}-{task.id}", run_id=self._run.id, step=0, task_id=task.id,
            purpose="evaluate", rollouts=rollouts, votes=0, seed=derive_seed(self._seed, task.id),
            sampling=config.models.policy.sampling(), env_adapter=config.env_adapter, reward=config.reward,
        )  # fmt: skip
        played = await run_group(
            lambda: self._tasks.make(self._options), policy or self._acts, task, group
        )
        return list(accuracy([t.outcome.value for t in played.trajectories]))

    def _late(self, result: Result) -> dict[str, float]:
        """Return the votes over the last steps together, and means of the last steps' measures."""
        last = self._config.run.steps
        theory = estimate(self._votes.before(last + 1))
        found = {"groups": float(theory.groups)}
        for name in ("p_plus", "p_minus", "mu", "mu_within", "f_ratio"):
            value = getattr(theory, name)
            if value is not None:
                found |= {name: value.value, f"{name}/low": value.low, f"{name}/high": value.high}
        if theory.one_sided is not None:
            found["one_sided"] = theory.one_sided
        for name in ("success", "in_band", "all_same"):
            values = [s[name] for s in result.steps[-_LATE:] if name in s]
            if values:
                found[name] = sum(values) / len(values)
        return found


def limits_of(section: LearnerSection) -> Limits:
    """Return the limits of a learner's rows."""
    return Limits(max_tokens=section.max_tokens, max_rows=section.max_rows)


def play(
    name: str,
    arm: Arm,
    seed: int,
    settings: Settings,
    models: Models,
    *,
    tell: Tell = silent,
    make: type[Run] = Run,
) -> Result:
    """Play one run in this process; `make` may be a run that measures more."""
    random.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        run = make(name, arm, seed, settings, models, Path(folder), tell)
        try:
            return asyncio.run(run.play())
        finally:
            run.close()
