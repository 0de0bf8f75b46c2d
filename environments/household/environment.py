"""The environment that the rollout workers play: a thin asynchronous shell round one `Episode`."""

from __future__ import annotations

from environments.household import instruction
from environments.household.episode import Episode
from environments.household.options import PlayOptions
from environments.household.params import world_of
from triforge.errors import EnvError
from triforge.rollout.protocols import Reset, StepResult
from triforge.types import Task


class Household:
    """One household episode. Every call returns at once; the episode is the same for every seed."""

    def __init__(self, options: PlayOptions) -> None:
        self._options = options
        self._episode: Episode | None = None
        self._used = False

    async def reset(self, task: Task, *, seed: int) -> Reset:  # noqa: ARG002
        """Start the task."""
        if self._used:
            raise EnvError("household: an environment plays one episode; make a fresh one to reset")
        world = world_of(task.params)
        expected = instruction.write(world)
        if task.instruction != expected:
            error = EnvError(
                f"household: task {task.id} announces {task.instruction!r}, but its parameters reward {expected!r}"
            )
            error.retryable = False
            raise error
        self._used = True
        self._episode = Episode(world, self._options, task.instruction)
        return self._episode.start()

    async def step(self, response: str) -> StepResult:
        """Play one response."""
        if self._episode is None or self._episode.done:
            raise EnvError(
                "household: step after the end or before reset; the episode is not running"
            )
        return self._episode.play(response)

    async def close(self) -> None:
        """Forget the episode. Idempotent."""
        self._used = True
        self._episode = None
