"""Hooks of the training loop: where a method adds to a step.

A method's `loop` part is a subclass of `LoopHooks`; every hook is optional. A step may be repeated after a crash, so each hook
gives the same result when it is called again with the same arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from services.trainer.credit.samples import Samples
from services.trainer.loop.parts import Parts, StopRequested
from triforge.config import RunConfig
from triforge.errors import TrainerError, TriforgeError
from triforge.methods import loop_part
from triforge.types import GroupTask, JudgedGroup, TrainBatch, TrainedRole, TrainRow

Measures = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodContext:
    """The run of a method, as its hooks see it.

    Attributes:
        name: the method's.
        notes: the method's state, JSON; it is committed with the step, and a hook changes it in place.
    """

    name: str
    parts: Parts
    run_id: str
    config: RunConfig
    notes: dict[str, Any] = field(default_factory=dict)

    async def save(self) -> None:
        """Store the notes now, before the step is committed."""
        note = self.parts.store.note
        await asyncio.to_thread(note, self.run_id, self.name, dict(self.notes))


class LoopHooks:
    """Hooks that add nothing; a method overrides those it needs. Its other names begin with `_`."""

    def __init__(self, run: MethodContext, options: Any) -> None:
        self.run, self.options = run, options

    @classmethod
    def unknown_names(cls) -> list[str]:
        """Return the public names of the class that are no hooks."""
        return sorted(name for name in {*dir(cls)} - {*dir(LoopHooks)} if name[0] != "_")

    async def begin(self, step: int, versions: Mapping[TrainedRole, int]) -> None:
        """Prepare a step that trains on these versions."""

    def plays(self, step: int) -> bool:  # noqa: ARG002
        """Return whether training tasks are played for the step. It is asked when they are due: with a staleness bound, steps ahead."""
        return True

    def trust(self, step: int) -> float:  # noqa: ARG002
        """Return the share of `lam` that the votes weigh in the step, 0 to 1; those of several methods are multiplied."""
        return 1.0

    async def more_groups(self, step: int, groups: Sequence[JudgedGroup]) -> list[GroupTask]:  # noqa: ARG002
        """Return tasks to play in addition to the step's groups, or to the groups of an evaluation (purpose `evaluate`)."""
        return []

    async def more_samples(
        self,
        step: int,  # noqa: ARG002
        groups: Sequence[JudgedGroup],  # noqa: ARG002
        samples: Samples,  # noqa: ARG002
    ) -> list[TrainRow]:
        """Return rows of the policy in addition to the step's samples."""
        return []

    async def measure(
        self,
        step: int,  # noqa: ARG002
        groups: Sequence[JudgedGroup],  # noqa: ARG002
        samples: Samples,  # noqa: ARG002
    ) -> Measures:
        """Return measures of the step's groups and samples, after `more_samples`."""
        return {}

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:  # noqa: ARG002
        """Return the batch of one model as its learner is to read it."""
        return batch

    async def evaluates(self, step: int) -> bool:  # noqa: ARG002
        """Return whether the step ends with an evaluation between those of `run.eval_every`; where that is 0, nothing is evaluated."""
        return False

    def evaluated(self, groups: Sequence[JudgedGroup]) -> Measures:  # noqa: ARG002
        """Return measures of an evaluation's groups, those of `more_groups` included."""
        return {}

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:  # noqa: ARG002
        """Return measures of the whole step, or of step 0; `stop` and `ended` are read after it."""
        return {}

    @property
    def refused(self) -> Mapping[TrainedRole, tuple[int, int]]:
        """By role, a version that is not to be used after this step, and the older version that takes its place."""
        return {}

    @property
    def stop(self) -> str:
        """The reason for which the run is to stop after this step; empty if it goes on."""
        return ""

    @property
    def ended(self) -> str:
        """The reason for which the run is complete before its last step; empty if it is not."""
        return ""

    @staticmethod
    def rolled_back(
        notes: Mapping[str, Any],
        options: Any,  # noqa: ARG004
        role: TrainedRole,  # noqa: ARG004
        folder: int | None,  # noqa: ARG004
        version: int,  # noqa: ARG004
    ) -> Mapping[str, Any]:
        """Return the method's notes after a model went back to the weights of a folder, which are `version` now.

        `folder` is its number, None for the initial folder.
        """
        return notes


@contextlib.contextmanager
def _errors_of(hooks: LoopHooks, hook: str) -> Iterator[None]:
    """Name the method and the hook in an error that is not triforge's own.

    Raises:
        TrainerError: the hook raised such an error.
    """
    try:
        yield
    except (TriforgeError, StopRequested):
        raise
    except Exception as error:
        raise TrainerError(
            f"methods.{hooks.run.name}: the hook {hook} raised {type(error).__name__}: {error}"
        ) from error


class Methods:
    """The loop parts of the methods that a run uses; each hook is called on all of them, in the order of their names.

    `notes` are the orchestrator's on the run; a method's own are under its name.
    """

    def __init__(
        self,
        parts: Parts,
        run_id: str,
        config: RunConfig,
        notes: dict[str, Any],
    ) -> None:
        self._hooks: list[LoopHooks] = []
        for method, options in config.methods_used.items():
            if method.loop:
                own = notes.setdefault(method.name, {})
                run = MethodContext(
                    name=method.name, parts=parts, run_id=run_id, config=config, notes=own
                )
                self._hooks.append(loop_part(method)(run, options))

    async def begin(self, step: int, versions: Mapping[TrainedRole, int]) -> None:
        """Prepare a step that trains on these versions."""
        for hooks in self._hooks:
            with _errors_of(hooks, "begin"):
                await hooks.begin(step, versions)

    def plays(self, step: int) -> bool:
        """Return whether training tasks are played for the step. It is asked when they are due: with a staleness bound, steps ahead."""
        play = True
        for hooks in self._hooks:
            with _errors_of(hooks, "plays"):
                play = play and hooks.plays(step)
        return play

    def trust(self, step: int) -> float:
        """Return the share of `lam` that the votes weigh in the step."""
        share = 1.0
        for hooks in self._hooks:
            with _errors_of(hooks, "trust"):
                share *= hooks.trust(step)
        return share

    async def more_groups(self, step: int, groups: Sequence[JudgedGroup]) -> list[GroupTask]:
        """Return the tasks to play in addition to these groups."""
        tasks: list[GroupTask] = []
        for hooks in self._hooks:
            with _errors_of(hooks, "more_groups"):
                tasks += await hooks.more_groups(step, groups)
        return tasks

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> Measures:
        """Add rows of the policy to the step's samples; return measures."""
        rows: list[TrainRow] = []
        for hooks in self._hooks:
            with _errors_of(hooks, "more_samples"):
                rows += await hooks.more_samples(step, groups, samples)
        samples.rows["policy"] += rows
        measures: Measures = {}
        for hooks in self._hooks:
            with _errors_of(hooks, "measure"):
                measures |= await hooks.measure(step, groups, samples)
        return measures

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:
        """Return the batch of one model as its learner is to read it."""
        for hooks in self._hooks:
            with _errors_of(hooks, "batch"):
                batch = await hooks.batch(step, batch)
        return batch

    async def evaluates(self, step: int) -> bool:
        """Return whether the step ends with an evaluation between those of `run.eval_every`; where that is 0, nothing is evaluated."""
        due = False
        for hooks in self._hooks:
            with _errors_of(hooks, "evaluates"):
                due = await hooks.evaluates(step) or due
        return due

    def evaluated(self, groups: Sequence[JudgedGroup]) -> Measures:
        """Return measures of an evaluation's groups."""
        measures: Measures = {}
        for hooks in self._hooks:
            with _errors_of(hooks, "evaluated"):
                measures |= hooks.evaluated(groups)
        return measures

    async def after_step(self, step: int, measures: Measures) -> Measures:
        """Return the measures of a step with those of the methods."""
        for hooks in self._hooks:
            with _errors_of(hooks, "after_step"):
                measures = measures | await hooks.after_step(step, measures)
        return measures

    @property
    def refused(self) -> Mapping[TrainedRole, tuple[int, int]]:
        """By role, a version that is not to be used, and the older version that takes its place."""
        found: dict[TrainedRole, tuple[int, int]] = {}
        for hooks in self._hooks:
            with _errors_of(hooks, "refused"):
                found |= hooks.refused
        return found

    @property
    def stop(self) -> str:
        """The reason for which the run is to stop after this step; empty if it goes on."""
        return self._reason("stop")

    @property
    def ended(self) -> str:
        """The reason for which the run is complete before its last step; empty if it is not."""
        return self._reason("ended")

    def _reason(self, hook: Literal["stop", "ended"]) -> str:
        for hooks in self._hooks:
            with _errors_of(hooks, hook):
                if reason := hooks.stop if hook == "stop" else hooks.ended:
                    return reason
        return ""
