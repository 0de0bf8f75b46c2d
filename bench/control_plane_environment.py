"""The environment family `bench`, which costs next to nothing; found by an entry point that the bench writes."""

from __future__ import annotations

from collections.abc import Sequence

from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, RewriteMenu, StepResult, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

NAME = "bench"


class Episode:
    """An episode of `turns` turns; the response "left" in the last one wins."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    async def reset(self, task: Task, *, seed: int) -> Reset:  # noqa: ARG002 - there is no chance
        return Reset(observation=Observation(text=task.instruction))

    async def step(self, response: str) -> StepResult:
        self._left -= 1
        return StepResult(
            observation=Observation(text="Go on."), action=response, action_valid=True,
            done=self._left == 0, success=response == "left",
        )  # fmt: skip

    async def close(self) -> None:
        """Nothing is held."""


class Family:
    """The `EnvironmentFamily`. A task is a number; the option `turns` says how long all episodes are."""

    name = NAME
    never_blocks = True

    def validate(self, params: Params) -> TaskDraft:
        if params.keys() != {"number"}:
            raise InputError(f"given {sorted(params)}, expected number")
        return TaskDraft(params=params, instruction=f"Which way at corner {params['number']}?")

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:  # noqa: ARG002
        return [{"number": seed + index} for index in range(count)]

    def make(self, options: Params) -> Episode:
        return Episode(int(str(options.get("turns", 1))))

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:  # noqa: ARG002
        return ["left"] * int(str(options.get("turns", 1)))

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:  # noqa: ARG002
        raise InputError("tasks of the bench are not rewritten")

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:  # noqa: ARG002
        raise InputError("tasks of the bench are not rewritten")

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:  # noqa: ARG002
        return []


FAMILY = Family()
