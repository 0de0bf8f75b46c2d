"""The asynchronous shell round an episode at a screen: its blocking code runs in a thread, its things are always freed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from triforge.errors import EnvError
from triforge.rollout.protocols import Reset, StepResult
from triforge.types import Task

_T = TypeVar("_T")


class ScreenEpisode(Protocol):
    """An episode as plain synchronous code. `start` once, `play` until `done`; `leave` at any time from another thread."""

    done: bool

    def start(self) -> Reset:
        """Take what the episode needs and begin."""
        ...

    def play(self, response: str) -> StepResult:
        """Play one response; never called when `done`."""
        ...

    def leave(self, *, sound: bool) -> None:
        """Free everything. `sound` is False when a call raised or is still under way. Idempotent."""
        ...


class Screen:
    """An `Environment` that plays one `ScreenEpisode`, then is used up.

    Args:
        name: of the family, for sentences.
        begin: makes the episode of a task; quick, takes nothing that must be freed.
    """

    def __init__(self, name: str, begin: Callable[[Task], ScreenEpisode]) -> None:
        self._name = name
        self._begin = begin
        self._episode: ScreenEpisode | None = None
        self._used = False
        self._busy = False

    async def reset(self, task: Task, *, seed: int) -> Reset:  # noqa: ARG002
        """Start the task; it holds all that is random in it, so the seed changes nothing."""
        if self._used:
            raise EnvError(
                f"{self._name}: an environment plays one episode; make a fresh one to reset"
            )
        self._used = True
        self._episode = self._begin(task)
        return await self._in_thread(self._episode.start)

    async def step(self, response: str) -> StepResult:
        """Play one response."""
        episode = self._episode
        if episode is None or episode.done:
            raise EnvError(
                f"{self._name}: step after the end or before reset; the episode is not running"
            )
        return await self._in_thread(lambda: episode.play(response))

    async def close(self) -> None:
        """Free everything, also under a call that was given up. Idempotent."""
        self._used = True
        episode, self._episode = self._episode, None
        if episode is not None:
            sound = not self._busy
            await asyncio.to_thread(lambda: episode.leave(sound=sound))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Run blocking work; when it raises or is given up, the mark stays and the episode is not sound."""
        self._busy = True
        result = await asyncio.to_thread(work)
        self._busy = False
        return result
