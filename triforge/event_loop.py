"""The event loop of programs that answer or send thousands of small messages: uvloop where it runs, else Python's own."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

if sys.platform == "win32":
    from asyncio import new_event_loop as _new
else:
    from uvloop import new_event_loop as _new

_T = TypeVar("_T")

_YOUNG: Final = 20_000  # objects; Python's own 700 are there after a message or two


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Such a loop, in a process that looks for cycles less often; see `collect_seldom`."""
    collect_seldom()
    return _new()


def collect_seldom() -> None:
    """Look for cycles only when many objects are new.

    Messages come and go without any, and looking for them takes up to a fifth of all the time.
    """
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run` on that loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def run_anywhere(work: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, in a notebook too, whose thread has an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended.

    Once is not enough for a task that talks to Redis: the client sends through `asyncio.wait_for`, which before Python
    3.12 swallows a cancellation that arrives just as the sending is done.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)


__all__ = ["collect_seldom", "end_task", "new_event_loop", "run", "run_anywhere", "together"]


async def together(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all of them at once, results in order; the first error ends the others and is raised as it is."""
    parts = [*work]
    if len(parts) < 2:  # the loop need not be asked
        return [await part for part in parts]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
