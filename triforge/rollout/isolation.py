"""An environment on its own thread, so that an environment that hangs cannot stop the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from triforge.rollout.protocols import Environment, EnvironmentFamily, Reset, StepResult
from triforge.rollout.scoring import with_threshold
from triforge.types import Params, Task

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def fresh_environment(family: EnvironmentFamily, options: Params) -> Environment:
    """Make an environment that cannot stop the caller's event loop and applies the threshold of success."""
    free = getattr(family, "never_blocks", False)
    made = family.make(options) if free else IsolatedEnvironment(lambda: family.make(options))
    return with_threshold(made, family, options)


class IsolatedEnvironment:
    """An environment in a thread with its own event loop.

    A deadline in the caller's loop then holds even if the environment blocks in synchronous code: the call is abandoned,
    and its thread (a daemon) ends when the blocking call returns. Code that never releases the interpreter lock still
    stops the whole process; it needs its own process.

    `make` is called in the thread, at `reset`; `close` waits `grace_s` seconds for the environment.
    """

    def __init__(self, make: Callable[[], Environment], *, grace_s: float = 2.0) -> None:
        self._make, self._grace_s = make, grace_s
        self._environment: Environment | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Build the environment and start the task."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(
            target=_serve, args=(self._loop,), daemon=True, name=f"environment-{task.id}"
        ).start()

        async def start() -> Reset:
            self._environment = self._make()
            return await self._environment.reset(task, seed=seed)

        return await self._call(start)

    async def step(self, response: str) -> StepResult:
        """Play a response."""
        return await self._call(lambda: self._started().step(response))

    async def close(self) -> None:
        """Close the environment if it can be reached within `grace_s`, and let the thread end. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is None:
            return

        async def end() -> None:
            if self._environment is not None:
                await self._environment.close()

        closing = asyncio.run_coroutine_threadsafe(end(), loop)
        try:
            async with asyncio.timeout(self._grace_s):
                await asyncio.wrap_future(closing)
        except TimeoutError:
            _log.warning(
                "an environment does not close within %.1f s; its thread is abandoned",
                self._grace_s,
            )
        finally:
            with contextlib.suppress(RuntimeError):  # the loop ended by itself
                loop.call_soon_threadsafe(loop.stop)

    async def _call(self, work: Callable[[], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            return await work()

        assert self._loop is not None, "reset comes first"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))

    def _started(self) -> Environment:
        assert self._environment is not None, "reset comes first"
        return self._environment


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then cancel its abandoned tasks."""
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
