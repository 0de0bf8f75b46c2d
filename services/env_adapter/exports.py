"""A pool as JSONL, written page by page as it is read: no list of all its tasks, no long transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Literal

from services.env_adapter.store import PoolStore
from triforge.types import Split, Task

_PAGE = 500

Content = Literal["tasks", "versions", "proposals"]


def export(
    store: PoolStore, pool: str, content: Content, split: Split | None = None
) -> Iterator[str]:
    """Lines of JSON, many at a time: the server passes each part from thread to thread.

    `tasks`: the current version of every slot that is played or paused, in the form in which a pool is made of them.
    `versions`: every version of every slot. `proposals`: every rewrite, with everything said about it; it knows no split.
    What changes while the lines are read may be seen or not; no line is half old and half new.

    Raises:
        NotFoundError: there is no such pool; raised by this call, before the first line.
    """
    found = store.pool(pool).id
    return (
        _proposals(store, found) if content == "proposals" else _tasks(store, found, content, split)
    )


def _tasks(store: PoolStore, pool: str, content: Content, split: Split | None) -> Iterator[str]:
    cursor: str | None = ""
    while cursor is not None:
        page = store.tasks(pool, split=split, cursor=cursor, limit=_PAGE)
        if content == "versions":
            yield _lines(task.model_dump_json() for task in page.tasks)
        else:
            yield _lines(_row(task) for task in page.tasks if task.state in ("active", "paused"))
        cursor = page.next_cursor


def _row(task: Task) -> str:
    return json.dumps({"params": task.params, "split": task.split})


def _proposals(store: PoolStore, pool: str) -> Iterator[str]:
    cursor: str | None = ""
    while cursor is not None:
        page = store.proposals(pool, cursor=cursor, limit=_PAGE)
        yield _lines(proposal.model_dump_json() for proposal in page.proposals)
        cursor = page.next_cursor


def _lines(texts: Iterable[str]) -> str:
    return "".join(text + "\n" for text in texts)
