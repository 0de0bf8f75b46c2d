"""The environment of an episode while it is played: what an environment raises or returns becomes one of our errors or types."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from triforge.errors import EnvError, TriforgeError, raised_at, raised_in
from triforge.event_loop import together
from triforge.methods import find, load_part
from triforge.rollout.observed import kept_reset, kept_step
from triforge.rollout.protocols import Environment, Reset, StepResult
from triforge.types import GroupTask, Task

T = TypeVar("T")
MakeEnvironment = Callable[[], Environment]

_CLOSE_S = 5.0  # an environment that takes longer to close is left to itself
_log = logging.getLogger(__name__)


def environment_of(group: GroupTask, make: MakeEnvironment) -> Environment:
    """Return the environment of a group: that of the method whose field the group carries, or the task's, which `make` makes."""
    for name, value in group.extra.items():
        if path := find(name).environment:
            environment: Environment = load_part(path, f"methods.{name}.environment")(value, make)
            return environment
    return make()


class LiveEnvironment:
    """One episode of an environment; `make` makes a fresh environment, which is reset with `seed`.

    Attributes:
        played: the responses so far.
    """

    def __init__(self, make: MakeEnvironment, task: Task, seed: int) -> None:
        self._make, self._task, self._seed = make, task, seed
        self.played: list[str] = []
        self._open: list[Environment] = []

    async def start(self) -> Reset:
        """Begin the episode."""
        self._environment, reset = await self._fresh()
        return reset

    async def step(self, response: str) -> StepResult:
        """Play a response."""
        result = await self._step(self._environment, response, len(self.played))
        self.played.append(response)
        return result

    async def close(self) -> None:
        """Close every environment that is open."""
        await self._close([*self._open])

    async def _step(self, environment: Environment, response: str, turn: int) -> StepResult:
        return kept_step(
            await called(partial(environment.step, response), f"step {turn} at {response!r:.100}"),
            turn,
        )

    async def _fresh(self) -> tuple[Environment, Reset]:
        try:
            environment = self._make()
        except TriforgeError:
            raise
        except Exception as error:
            raise _as_ours(error, "make") from error
        self._open.append(environment)
        reset = await called(partial(environment.reset, self._task, seed=self._seed), "reset")
        return environment, kept_reset(reset)

    async def _close(self, environments: Sequence[Environment]) -> None:
        self._open = [one for one in self._open if one not in environments]
        await together(map(_closed, environments))


async def _closed(environment: Environment) -> None:
    try:
        async with asyncio.timeout(_CLOSE_S):
            await environment.close()
    except Exception as error:  # noqa: BLE001 (the episode is over; its outcome stands)
        _log.warning("an environment did not close: %s: %s", type(error).__name__, error)


async def called(call: Callable[[], Awaitable[T]], where: str) -> T:
    """Return the answer of an environment; an exception becomes one of our errors."""
    try:
        return await call()
    except TriforgeError:  # keeps its kind, its cause and whether to try again
        raise
    except Exception as error:
        raise _as_ours(error, where) from error


def _as_ours(error: Exception, where: str) -> EnvError:
    text = f"{type(error).__name__} in {where}: {error}{raised_at(error)}"
    made = EnvError(f"the environment raised {text}")
    made.raised = raised_in(error)
    return made
