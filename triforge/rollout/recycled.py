"""Episodes that verify what the policy answers to questions about finished rollouts (`GroupTask.recycled`)."""

from __future__ import annotations

from dataclasses import replace

from triforge.rollout.copies import MakeEnvironment
from triforge.rollout.protocols import Environment, Observation, Reset, StepResult
from triforge.rollout.verdicts import ANSWERS, parse_vote
from triforge.types import Recycled, Task


def asking(item: Recycled | None, make: MakeEnvironment) -> Environment:
    """The environment of an item, or without one the task's own."""
    if item is None:
        return make()
    return Judging(item) if item.verdict else Reflecting(make(), item.text)


class Judging:
    """One question, won with the right verdict."""

    def __init__(self, item: Recycled) -> None:
        self._item = item

    async def reset(self, task: Task, *, seed: int) -> Reset:  # noqa: ARG002 (the protocol)
        """Ask."""
        seen = Observation(text=self._item.text, admissible=tuple(ANSWERS.values()))
        return Reset(observation=seen)

    async def step(self, response: str) -> StepResult:
        """Hold the verdict against the outcome that the environment measured."""
        said = parse_vote(response)
        return StepResult(
            observation=Observation(text=""),
            action=str(said) if said else "",
            action_valid=said != 0,
            done=True,
            success=said == self._item.verdict,
        )

    async def close(self) -> None:
        """Nothing is open."""


class Reflecting:
    """The task once more, with a failed attempt in sight; the environment says whether it is mended."""

    def __init__(self, environment: Environment, attempt: str) -> None:
        self._environment, self._attempt = environment, attempt
        self.step, self.close = environment.step, environment.close

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Start the task, and show the attempt."""
        found = await self._environment.reset(task, seed=seed)
        seen = found.observation
        return replace(found, observation=replace(seen, text=f"{seen.text}{self._attempt}"))
