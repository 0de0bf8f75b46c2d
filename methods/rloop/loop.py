"""The phases of RLoop.

    explore x explore_steps ─► filter ─► fine-tune ─► evaluate ─► explore ...           (the last three are one step)

Each loop begins with weights theta_k. Its steps are RL and leave everything they solved in the run's records. Then the hard
successes of all of them are imitated, by theta_k and not by what RL has made of it, and the result is theta_k+1 under the next
version. The optimiser begins afresh after each change of phase. The reward model, rewritten tasks and levels of difficulty go on.

The phase of a step follows from its number. The notes of the method (`loop`, `phase`, `first`: the folder of theta_k) are stored
when a phase begins, and committed with the step. A repeated phase gives the same: the archive is of committed steps, a version
that was written is only announced again, finished evaluation episodes are reused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal

from methods.rloop.archive import Rollout, archive_measures, solutions
from methods.rloop.options import RLoopOptions
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from services.trainer.runs.rollback import Versions
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_step_records
from triforge.store.weight_folders import version_name
from triforge.types import JudgedGroup, TrainBatch, TrainedRole, TrainRow, WeightVersion

log = logging.getLogger(__name__)

Phase = Literal["explore", "filter", "fine_tune", "evaluate"]
_OF_POOL: Final = ("train", "measure_parent")
_ARCHIVED: Final = ("trajectory_id", "task_id", "purpose", "outcome", "action", "images")
_TOKENS: Final = (
    "trajectory_id", "segment", "task_id", "context_ids", "response_ids", "response_logprobs", "policy_versions",
)  # fmt: skip


class RLoop(LoopHooks):
    """Loops of `explore_steps` steps of RL and one of fine-tuning."""

    options: RLoopOptions

    def __init__(self, run: MethodContext, options: RLoopOptions) -> None:
        super().__init__(run, options)
        self._state = run.notes
        self._state.setdefault("loop", -1)
        self._state.setdefault("first", None)
        self._restarts, self._too_few = False, ""
        self._archive: Measures = {}

    @property
    def ended(self) -> str:
        """The reason for which no further step is taken."""
        return str(self._state.get("ended", ""))

    @property
    def _folders(self) -> Versions:
        parts = self.run.parts
        return Versions(parts.store, parts.artifacts, self.run.run_id, "policy")

    def _place(self, step: int) -> tuple[int, int]:
        """Return the loop of a step, and the step's number in it; the last one fine-tunes. Both count from 0."""
        return divmod(step - 1, self.options.explore_steps + 1)

    async def begin(self, step: int, versions: Mapping[TrainedRole, int]) -> None:
        """Note, in the first step of a loop, the weights that the loop comes back to."""
        loop, _ = self._place(step)
        folder = await asyncio.to_thread(self._folders.number_of, versions["policy"])
        if self._state["loop"] != loop:
            await self._enter("explore", loop=loop, first=folder)
        self._restarts = loop > 0 and folder == self._state["first"]

    def plays(self, step: int) -> bool:
        """Return whether the step explores: all but the last step of a loop do."""
        return self._place(step)[1] < self.options.explore_steps

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> list[TrainRow]:
        """Return, in the step that fine-tunes, the loop's solutions as sequences in which every action counts alike."""
        if self.plays(step):
            return []
        await self._enter("filter")
        options, artifacts = self.options, self.run.parts.artifacts
        files = await asyncio.to_thread(self._files, step)
        archive = await asyncio.to_thread(read_archive, artifacts, files)
        chosen = solutions(archive, hardest=options.hardest, distinct=options.distinct)
        measures = archive_measures(archive, k=options.pass_k)
        measures |= {"rollouts": float(len(archive)), "solutions": float(len(chosen))}
        self._archive = {f"archive/{name}": value for name, value in measures.items()}
        if len(chosen) < options.least:
            self._too_few = (
                f"ended early: loop {self._state['loop'] + 1} has {len(chosen)} hard solutions, fewer than "
                f"methods.rloop.least = {options.least}"
            )
            return []
        longest = self.run.config.trainer.policy.max_tokens
        read = partial(read_rows, artifacts, files, {r.id for r in chosen}, longest)
        return await asyncio.to_thread(read)

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Return the measures of the archive in the step that fine-tunes."""
        return {} if self.plays(step) else self._archive

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:
        """Keep the loop's first weights on the disk; train from them, with an empty optimiser, where a phase begins."""
        if batch.role != "policy":
            return batch
        first, folder = batch.initial.number, batch.initial.folder
        if self._state["first"] is not None:
            first = self._state["first"]
            folder = str(self._folders.weights / version_name(first))
        changes: dict[str, Any] = {"pinned": (*batch.pinned, first)}
        if self._restarts or not self.plays(step):
            start = WeightVersion(number=batch.version, folder=folder, parent=first)
            changes["start"] = start
        if self.plays(step):
            return batch.model_copy(update=changes)
        await self._enter("fine_tune")
        plain = {"kl_beta": 0.0, "entropy_bonus": 0.0, "aggregation": "token_mean"}
        learner = {"epochs": self.options.epochs, "learning_rate": self.options.learning_rate}
        changes["algorithm"] = batch.algorithm.of_job("ce").changed(**plain)
        changes["learner"] = batch.learner.model_copy(update=learner)
        changes["checkpoint"] = "before"  # the next loop may begin with this version
        return batch.model_copy(update=changes)

    async def evaluates(self, step: int) -> bool:
        """Return whether the step fine-tunes."""
        if self.plays(step):
            return False
        await self._enter("evaluate")
        return True

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Measure the loop and its phase; held-out success that falls in several loops in a row ends the run."""
        if step == 0:
            return {}
        loop, _ = self._place(step)
        state = self._state
        state["ended"] = self._too_few
        found = {"phase/loop": float(loop + 1), "phase/fine_tuned": float(not self.plays(step))}
        value = measures.get("eval/sampled", measures.get("eval/sampled_score"))
        if self.plays(step) or value is None:
            return found
        before = state.get("held_out")
        state["falls"] = state.get("falls", 0) + 1 if before is not None and value < before else 0
        state["held_out"] = value
        if state["falls"] >= self.options.falls:
            state["ended"] = (
                f"ended early: held-out success fell in {state['falls']} loops in a row, to {value:.3f}; "
                "methods.rloop.falls allows fewer"
            )
        return found

    @staticmethod
    def rolled_back(
        notes: Mapping[str, Any],
        options: RLoopOptions,
        role: TrainedRole,
        folder: int | None,
        version: int,
    ) -> Mapping[str, Any]:
        """Come back to the weights of the rollback, if the loop began with newer ones."""
        if role != "policy" or (notes.get("first") or 0) <= (folder or 0):
            return notes
        return {**notes, "first": None if folder is None else version}

    async def _enter(self, phase: Phase, **more: Any) -> None:
        """Store that a phase begins, for people and for an orchestrator that takes the run up."""
        self._state.update({"phase": phase, **more})
        log.info("loop %d: %s", self._state["loop"] + 1, phase)
        await self.run.save()

    def _files(self, step: int) -> list[str]:
        """Return the records of the loop's committed steps."""
        place = self._place(step)[1]
        steps = self.run.parts.store.steps(self.run.run_id, after=step - place - 1, limit=place)
        return [one.artifacts["step_record"] for one in steps if "step_record" in one.artifacts]


def read_archive(artifacts: ArtifactStore, files: Iterable[str]) -> list[Rollout]:
    """Read the measured rollouts of the pool's tasks; those with images are left out, as records do not place images."""
    archive = []
    for uri in files:
        rows = read_step_records(artifacts, uri, ("step", *_ARCHIVED))
        for name, own in groupby(rows, itemgetter("trajectory_id")):
            turns = list(own)
            first = turns[0]
            images = any(turn["images"] for turn in turns)
            if first["purpose"] in _OF_POOL and first["outcome"] is not None and not images:
                actions = " | ".join(turn["action"] for turn in turns)
                won = first["outcome"] == 1
                archive.append(Rollout(name, first["task_id"], first["step"], won, actions))
    return archive


def read_rows(
    artifacts: ArtifactStore, files: Iterable[str], wanted: set[str], max_tokens: int
) -> list[TrainRow]:
    """Return the segments of these rollouts as rows in which all sampled tokens weigh the same, 1 in all."""
    segments: list[list[dict[str, Any]]] = []
    for uri in files:
        rows = read_step_records(artifacts, uri, _TOKENS, [("trajectory_id", "in", wanted)])
        segment = itemgetter("trajectory_id", "segment")  # agents that take turns have one each
        segments += [[*own] for _, own in groupby(sorted(rows, key=segment), segment)]
    found = [row for turns in segments if len((row := _row(turns)).ids) <= max_tokens]
    total = sum(sum(row.weights) for row in found)
    return [
        row.model_copy(update={"weights": tuple(w / total for w in row.weights)}) for row in found
    ]


def _row(turns: Sequence[Mapping[str, Any]]) -> TrainRow:
    ids, logprobs, versions, sampled = list[int](), list[float](), list[int](), list[float]()
    for turn in turns:
        context, response = turn["context_ids"], turn["response_ids"]
        ids += [*context, *response]
        logprobs += [*[0.0] * len(context), *turn["response_logprobs"]]
        versions += [*[-1] * len(context), *turn["policy_versions"]]
        sampled += [*[0.0] * len(context), *[1.0] * len(response)]
    first = turns[0]
    return TrainRow(
        key=f"{first['trajectory_id']}/{first['segment']}", task_id=first["task_id"], ids=tuple(ids),
        logprobs=tuple(logprobs), advantages=tuple(sampled), weights=tuple(sampled), versions=tuple(versions),
    )  # fmt: skip
