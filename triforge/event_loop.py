"""The event loop of programs with thousands of small messages: uvloop, with rare garbage collection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import uvloop

_T = TypeVar("_T")

_YOUNG: Final = 20_000  # objects; Python's own 700 are reached after a message or two


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return such a loop, and call `collect_seldom`."""
    collect_seldom()
    return uvloop.new_event_loop()


def collect_seldom() -> None:
    """Search for reference cycles only when many objects are new: messages have none, and the search takes up to a fifth of the time."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def run_anywhere(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine like `asyncio.run`, also in a notebook, whose thread already has an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    begun: list[asyncio.Task[Any]] = []

    async def noted() -> _T:
        begun.extend(filter(None, [asyncio.current_task()]))
        return await work

    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, noted())
        try:
            return result.result()
        except KeyboardInterrupt:  # only the first thread gets it
            for task in begun:
                task.get_loop().call_soon_threadsafe(task.cancel)
            with suppress(asyncio.CancelledError):
                result.result()
            raise


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended.

    A task that talks to Redis may need several calls: the client sends through `asyncio.wait_for`, which before Python 3.12
    swallows a cancellation that arrives at the end of the sending.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)


async def together(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await coroutines concurrently, results in order; the first error cancels the others and is raised."""
    parts = [*work]
    if len(parts) < 2:  # no task is needed
        return [await part for part in parts]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
