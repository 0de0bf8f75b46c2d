"""What the steps of a run are for: exploring all the time, or loops of exploring and fine-tuning.

    single   explore, explore, ...
    rloop    explore x explore_steps ─► filter ─► fine-tune ─► evaluate ─► explore ...           (the last three are one step)

Each loop begins with weights theta_k. Its steps are RL and leave everything they solved in the run's records. Then the hard
successes of all of them are imitated, by theta_k and not by what RL has made of it, and the result is theta_k+1 under the next
version. The optimiser begins afresh after each change of phase. The reward model, rewritten tasks and levels of difficulty go on.

Which phase a step belongs to follows from its number. Where a loop stands (`phases` in the orchestrator's notes) is written when a
phase begins, and committed with the step; every phase repeated gives the same: the archive is of committed steps, a version that
was written is only announced again, finished evaluation episodes are reused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal

from services.trainer.loop.parts import Parts
from services.trainer.runs.rollback import Versions
from triforge.algorithms.archive import Rollout, archive_measures, solutions
from triforge.config import RunConfig
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_step_records
from triforge.store.weight_folders import version_name
from triforge.types import TrainRow, WeightVersion

log = logging.getLogger(__name__)

Phase = Literal["explore", "filter", "fine_tune", "evaluate"]
_OF_POOL: Final = ("train", "measure_parent")
_ABOUT: Final = ("trajectory_id", "task_id", "purpose", "outcome", "action", "images")
_TOKENS: Final = (
    "trajectory_id", "segment", "task_id", "context_ids", "response_ids", "response_logprobs", "policy_versions",
)  # fmt: skip


class Phases:
    """What the loop asks of a phase controller. This one is `single`: every step explores."""

    def __init__(self, parts: Parts, run_id: str, config: RunConfig, notes: dict[str, Any]) -> None:
        self._parts, self._run_id, self._config, self._notes = parts, run_id, config, notes

    @property
    def ended(self) -> str:
        """Why the run is over before its last step; empty if it is not."""
        return ""

    async def begin(self, step: int, version: int) -> None:
        """A step begins, whose policy has this version."""

    def plays(self, step: int) -> bool:  # noqa: ARG002
        """Whether the step plays training tasks."""
        return True

    async def rows(self, step: int) -> tuple[list[TrainRow], dict[str, float]]:  # noqa: ARG002
        """Rows beside those of what was played, and what is measured of them."""
        return [], {}

    async def batch(self, step: int) -> dict[str, Any]:  # noqa: ARG002
        """Fields of the policy's batch that differ from those of a step of RL."""
        return {}

    async def evaluates(self, step: int) -> bool:  # noqa: ARG002
        """Whether the step ends with an evaluation, whatever `run.eval_every` says."""
        return False

    def measure(self, step: int, measures: Mapping[str, float]) -> dict[str, float]:  # noqa: ARG002
        """What is measured of the phase, when everything else of the step is."""
        return {}


class RLoop(Phases):
    """Loops of `explore_steps` steps of RL and one of fine-tuning (RLoop, arXiv 2511.04285)."""

    NOTE: Final = "phases"

    def __init__(self, parts: Parts, run_id: str, config: RunConfig, notes: dict[str, Any]) -> None:
        super().__init__(parts, run_id, config, notes)
        self._options, self._untrained, self._few = config.phases, False, ""
        self._version = 0
        self._state: dict[str, Any] = notes.setdefault(
            self.NOTE, {"loop": -1, "phase": "explore", "first": None, "falls": 0, "ended": ""}
        )

    @property
    def ended(self) -> str:
        """Why no further step is taken."""
        return str(self._state["ended"])

    @property
    def _versions(self) -> Versions:
        return Versions(self._parts.store, self._parts.artifacts, self._run_id, "policy")

    def _place(self, step: int) -> tuple[int, int]:
        """The loop of a step, and its number in that loop; the last one fine-tunes. Both from 0."""
        return divmod(step - 1, self._options.explore_steps + 1)

    async def begin(self, step: int, version: int) -> None:
        """The first step of a loop notes the weights that the loop comes back to."""
        loop, _ = self._place(step)
        self._version = version
        folder = await asyncio.to_thread(self._versions.number_of, version)
        if self._state["loop"] != loop:
            await self._enter("explore", loop=loop, first=folder)
        self._untrained = loop > 0 and folder == self._state["first"]

    def plays(self, step: int) -> bool:
        """All but the last step of a loop."""
        return self._place(step)[1] < self._options.explore_steps

    async def rows(self, step: int) -> tuple[list[TrainRow], dict[str, float]]:
        """Of the step that fine-tunes: the loop's solutions, as sequences in which every action counts alike."""
        if self.plays(step):
            return [], {}
        await self._enter("filter")
        options, files = self._options, await asyncio.to_thread(self._files, step)
        archive = await asyncio.to_thread(read_archive, self._parts.artifacts, files)
        chosen = solutions(archive, hardest=options.hardest, distinct=options.distinct)
        measures = archive_measures(archive, k=options.pass_k)
        measures |= {"rollouts": float(len(archive)), "solutions": float(len(chosen))}
        found = {f"archive/{name}": value for name, value in measures.items()}
        if len(chosen) < options.least:
            loop, few = self._state["loop"] + 1, len(chosen)
            self._few = f"ended early: loop {loop} has {few} hard solutions, fewer than phases.least = {options.least}"
            return [], found
        most = self._config.trainer.policy.max_tokens
        read = partial(read_rows, self._parts.artifacts, files, {r.id for r in chosen}, most)
        return await asyncio.to_thread(read), found

    async def batch(self, step: int) -> dict[str, Any]:
        """The weights that the loop comes back to, kept until it has; whether the learner begins with them and an empty optimiser."""
        noted = self._state["first"]
        first, folder = self._notes["base"]["policy"], self._notes["paths"]["policy"]
        if noted is not None:
            first, folder = noted, str(self._versions.weights / version_name(noted))
        found: dict[str, Any] = {"pinned": first}
        if self._untrained or not self.plays(step):
            found["start"] = WeightVersion(number=self._version, folder=folder, parent=first)
        if self.plays(step):
            return found
        await self._enter("fine_tune")
        options, config = self._options, self._config
        plain = {"kl_beta": 0.0, "entropy_bonus": 0.0, "aggregation": "token_mean"}
        algorithm = config.algorithm.resolved.of_job("ce").changed(**plain)
        learner = {"epochs": options.epochs, "learning_rate": options.learning_rate}
        return found | {
            "algorithm": algorithm,
            "learner": config.trainer.policy.model_copy(update=learner),
        }

    async def evaluates(self, step: int) -> bool:
        """After fine-tuning."""
        if self.plays(step):
            return False
        await self._enter("evaluate")
        return True

    def measure(self, step: int, measures: Mapping[str, float]) -> dict[str, float]:
        """Which loop and phase it was. Held-out success that falls in several loops in a row ends the run."""
        loop, _ = self._place(step)
        self._state["ended"] = self._few  # committed with the step, and not before
        found = {"phase/loop": float(loop + 1), "phase/fine_tuned": float(not self.plays(step))}
        value = measures.get("eval/sampled", measures.get("eval/sampled_score"))
        if self.plays(step) or value is None:
            return found
        state, before = self._state, self._state.get("held_out")
        state["falls"] = state["falls"] + 1 if before is not None and value < before else 0
        state["held_out"] = value
        if state["falls"] >= self._options.falls:
            state["ended"] = (
                f"ended early: held-out success fell in {state['falls']} loops in a row, to {value:.3f}; "
                "phases.falls allows fewer"
            )
        return found

    async def _enter(self, phase: Phase, **more: Any) -> None:
        """Note that a phase begins, so that people and a later orchestrator see where the run stands."""
        self._state |= {"phase": phase, **more}
        log.info("loop %d: %s", self._state["loop"] + 1, phase)
        note = self._parts.store.note
        await asyncio.to_thread(note, self._run_id, self.NOTE, dict(self._state))

    def _files(self, step: int) -> list[str]:
        """The records of the loop's committed steps."""
        place = self._place(step)[1]
        steps = self._parts.store.steps(self._run_id, after=step - place - 1, limit=place)
        return [one.artifacts["step_record"] for one in steps if "step_record" in one.artifacts]


CONTROLLERS: Final[Mapping[str, type[Phases]]] = {"single": Phases, "rloop": RLoop}


def read_archive(artifacts: ArtifactStore, files: Iterable[str]) -> list[Rollout]:
    """The measured rollouts of the pool's tasks in these records; what has pictures is left out, as records have no places of them."""
    found = []
    for uri in files:
        rows = read_step_records(artifacts, uri, ("step", *_ABOUT))
        for name, own in groupby(rows, itemgetter("trajectory_id")):
            turns = list(own)
            first = turns[0]
            pictures = any(turn["images"] for turn in turns)
            if first["purpose"] in _OF_POOL and first["outcome"] is not None and not pictures:
                actions = " | ".join(turn["action"] for turn in turns)
                won = first["outcome"] == 1
                found.append(Rollout(name, first["task_id"], first["step"], won, actions))
    return found


def read_rows(
    artifacts: ArtifactStore, files: Iterable[str], wanted: set[str], max_tokens: int
) -> list[TrainRow]:
    """The segments of these rollouts as rows in which all sampled tokens weigh the same, 1 in all."""
    segments: list[list[dict[str, Any]]] = []
    for uri in files:
        rows = read_step_records(artifacts, uri, _TOKENS, [("trajectory_id", "in", wanted)])
        segment = itemgetter("trajectory_id", "segment")  # agents take turns in theirs
        segments += [[*own] for _, own in groupby(sorted(rows, key=segment), segment)]
    found = [row for turns in segments if len((row := _row(turns)).ids) <= max_tokens]
    total = sum(sum(row.weights) for row in found)
    return [
        row.model_copy(update={"weights": tuple(w / total for w in row.weights)}) for row in found
    ]


def _row(turns: Sequence[Mapping[str, Any]]) -> TrainRow:
    ids, logprobs, versions, sampled = list[int](), list[float](), list[int](), list[float]()
    for turn in turns:
        before, said = turn["context_ids"], turn["response_ids"]
        ids += [*before, *said]
        logprobs += [*[0.0] * len(before), *turn["response_logprobs"]]
        versions += [*[-1] * len(before), *turn["policy_versions"]]
        sampled += [*[0.0] * len(before), *[1.0] * len(said)]
    first = turns[0]
    return TrainRow(
        key=f"{first['trajectory_id']}/{first['segment']}", task_id=first["task_id"], ids=tuple(ids),
        logprobs=tuple(logprobs), advantages=tuple(sampled), weights=tuple(sampled), versions=tuple(versions),
    )  # fmt: skip
