"""Small pieces of work at the same time, so that what they ask of Redis travels together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def together(works: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Do all of them at once. The first that fails ends the others, and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
