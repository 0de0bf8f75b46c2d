"""The environment of an episode, and copies of it in the same state, in which the candidates of a turn are tried.

A copy is the environment's own (`Forks`) or a fresh environment in which the responses so far are played again: same task and
seed, same episode.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from triforge.errors import EnvError, TriforgeError, raised_at
from triforge.event_loop import together
from triforge.methods import find, load_part
from triforge.rollout.observed import kept_reset, kept_step
from triforge.rollout.protocols import Environment, Forks, Reset, StepResult
from triforge.types import GroupTask, Task

T = TypeVar("T")
MakeEnvironment = Callable[[], Environment]

_CLOSE_S = 5.0  # after which a closing environment is abandoned
_log = logging.getLogger(__name__)


def environment_of(group: GroupTask, make: MakeEnvironment) -> Environment:
    """Return the environment of a group: that of the method whose field the group carries, or the task's, which `make` makes."""
    for name, value in group.extra.items():
        if path := find(name).environment:
            environment: Environment = load_part(path, f"methods.{name}.environment")(value, make)
            return environment
    return make()


class Trunk:
    """The environment in which the responses so far were played; `make` makes a fresh one, reset with `seed`."""

    def __init__(self, make: MakeEnvironment, task: Task, seed: int) -> None:
        self._make, self._task, self._seed = make, task, seed
        self._played: list[str] = []
        self._seen = ""
        self._open: list[Environment] = []
        self._tried: dict[str, tuple[Environment, StepResult]] = {}

    @property
    def state(self) -> str:
        """The name of the present state: equal responses have equal names."""
        return hashlib.sha256(json.dumps(self._played).encode()).hexdigest()[:16]

    async def start(self) -> Reset:
        """Begin the episode."""
        self._environment, reset = await self._fresh()
        self._seen = reset.observation.text
        return reset

    async def results(self, responses: Sequence[str]) -> list[StepResult]:
        """Play each response from the present state and return the results; equal responses are played once."""
        distinct, turn = [*dict.fromkeys(responses)], len(self._played)
        copies = await together(self._copy() for _ in distinct[1:])

        async def play(environment: Environment, response: str) -> StepResult:
            result = await _awaited(partial(environment.step, response), f"step {turn}")
            return kept_step(result, turn)

        places = [self._environment, *copies]
        results = await together(map(play, places, distinct))
        self._tried = dict(zip(distinct, zip(places, results, strict=True), strict=True))
        return [self._tried[response][1] for response in responses]

    async def go_on(self, response: str) -> None:
        """Continue after one of the played responses, and close the copies of the others."""
        self._environment, result = self._tried.pop(response)
        self._played.append(response)
        self._seen = result.observation.text
        await self._close([environment for environment, _ in self._tried.values()])

    async def close(self) -> None:
        """Close every environment that is open."""
        await self._close([*self._open])

    async def _close(self, environments: Sequence[Environment]) -> None:
        self._open = [one for one in self._open if one not in environments]
        await together(map(_closed, environments))

    async def _fresh(self) -> tuple[Environment, Reset]:
        try:
            environment = self._make()
        except TriforgeError:
            raise
        except Exception as error:
            raise _env_error(error, "make") from error
        self._open.append(environment)
        reset = await _awaited(partial(environment.reset, self._task, seed=self._seed), "reset")
        return environment, kept_reset(reset)

    async def _copy(self) -> Environment:
        own = self._environment
        if isinstance(own, Forks) and (copy := await _awaited(own.fork, "fork")) is not None:
            self._open.append(copy)
            return copy
        environment, reset = await self._fresh()
        seen = reset.observation.text
        for turn, response in enumerate(self._played):
            result = await _awaited(partial(environment.step, response), f"step {turn}, again")
            seen = kept_step(result, turn).observation.text
        if seen != self._seen:
            error = EnvError(
                f"after the same {len(self._played)} responses the environment showed {seen[:200]!r}, then "
                f"{self._seen[:200]!r}: tree rollouts need the same episode for the same seed, or an environment with `fork`, "
                "never_blocks and without success_at"
            )
            error.retryable = False
            raise error
        return environment


async def _closed(environment: Environment) -> None:
    try:
        async with asyncio.timeout(_CLOSE_S):
            await environment.close()
    except Exception as error:  # noqa: BLE001 (the episode is over; its outcome stands)
        _log.warning("an environment did not close: %s: %s", type(error).__name__, error)


async def _awaited(call: Callable[[], Awaitable[T]], where: str) -> T:
    """Await a call of an environment; a foreign exception becomes an EnvError."""
    try:
        return await call()
    except TriforgeError:  # keeps its kind and whether it is retryable
        raise
    except Exception as error:
        raise _env_error(error, where) from error


def _env_error(error: Exception, where: str) -> EnvError:
    """Convert a foreign exception of an environment to an EnvError."""
    raised = f"{type(error).__name__} in {where}: {error}{raised_at(error)}"
    return EnvError(f"the environment raised {raised}")
