"""The ids that log lines and spans are about; they hold inside a `with` block and travel with requests."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import quote, unquote

# In the order in which lines show them. `policy`, `reward` and `task_version` are versions.
NAMES: Final = (
    "run", "step", "group", "trajectory", "task", "task_version", "policy", "reward", "role", "pool",
)  # fmt: skip
HEADER: Final = "baggage"  # of W3C; members are `triforge.<name>=<value>`
_PREFIX: Final = "triforge."
_LONGEST: Final = 200  # characters of a value that travels
_MOST: Final = 2048  # characters of a header; a longer one is neither read nor sent
_FIELDS: Final = {
    "run_id": "run", "step": "step", "group_id": "group", "trajectory_id": "trajectory", "task_id": "task",
    "task_version": "task_version", "policy_version": "policy", "reward_version": "reward", "role": "role",
    "pool_id": "pool",
}  # fmt: skip

Ids = Mapping[str, str]
NO_IDS: Final[Ids] = {}
_KNOWN: ContextVar[Ids] = ContextVar("triforge_ids", default=NO_IDS)


def stamp() -> dict[str, Any]:
    """Return the time and the process of an event: `at` and `worker`."""
    return {"at": time.time(), "worker": f"{socket.gethostname()}:{os.getpid()}"}


def known() -> Ids:
    """Return the current ids."""
    return _KNOWN.get()


@contextlib.contextmanager
def about(**ids: object) -> Iterator[None]:
    """Add ids inside the block; None and the empty string add nothing."""
    added = {name: str(value) for name, value in ids.items() if value is not None and value != ""}
    with only({**_KNOWN.get(), **added}):
        yield


@contextlib.contextmanager
def only(ids: Ids) -> Iterator[None]:
    """Replace the ids inside the block, for work on behalf of several jobs."""
    token = _KNOWN.set(ids)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def ids_of(message: Any) -> dict[str, str]:
    """Return the ids among a message's fields, for `about`."""
    values = {name: getattr(message, field, None) for field, name in _FIELDS.items()}
    return {name: str(value) for name, value in values.items() if isinstance(value, str | int)}


def common(parts: Sequence[Ids]) -> Ids:
    """Return the ids that all parts share."""
    return {n: v for n, v in parts[0].items() if all(part.get(n) == v for part in parts)}


def receive_ids(header: bytes) -> None:
    """Take the ids of a request's header for the rest of this task; other members of the header are ignored."""
    ids = {}
    for member in header.decode("latin-1").split(",") if len(header) <= _MOST else ():
        name, _, value = member.partition(";")[0].strip().partition("=")
        plain = name.strip().removeprefix(_PREFIX)
        if name.strip().startswith(_PREFIX) and plain in NAMES:
            ids[plain] = unquote(value.strip())[:_LONGEST]
    _KNOWN.set({**ids, **_KNOWN.get()})


def carried() -> dict[str, str]:
    """Return the header that sends the ids along; empty without ids."""
    members = (f"{_PREFIX}{n}={quote(v[:_LONGEST], safe='')}" for n, v in known().items())
    value = ",".join(members)
    return {HEADER: value} if 0 < len(value) <= _MOST else {}
