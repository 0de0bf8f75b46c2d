"""The event loop of programs that answer or send thousands of small messages: uvloop where it runs, else Python's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

if sys.platform == "win32":
    from asyncio import new_event_loop
else:
    from uvloop import new_event_loop

_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run` on that loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


__all__ = ["new_event_loop", "run"]
