"""Whom a log line or a span is about: ids that hold for everything inside a `with`, and that travel with requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

# In the order in which lines show them. `policy`, `reward` and `task_version` are versions.
NAMES: Final = (
    "run", "step", "group", "trajectory", "task", "task_version", "policy", "reward", "role", "pool",
)  # fmt: skip
HEADER: Final = "baggage"  # of W3C; members are `triforge.<name>=<value>`
_PREFIX: Final = "triforge."
_LONGEST: Final = 200  # characters of a value that travels
_MOST: Final = 2048  # characters of a header that is read or sent; a longer one is none of ours
_FIELDS: Final = {
    "run_id": "run", "step": "step", "group_id": "group", "trajectory_id": "trajectory", "task_id": "task",
    "task_version": "task_version", "policy_version": "policy", "reward_version": "reward", "role": "role",
    "pool_id": "pool",
}  # fmt: skip

Ids = Mapping[str, str]
NOBODY: Final[Ids] = {}
_KNOWN: ContextVar[Ids] = ContextVar("triforge_ids", default=NOBODY)
_CAME: ContextVar[bytes] = ContextVar("triforge_ids_of_request", default=b"")


def known() -> Ids:
    """Whom what happens now is about; empty where nothing is known."""
    came = _CAME.get()
    return {**_read(came), **_KNOWN.get()} if came else _KNOWN.get()


@contextlib.contextmanager
def about(**ids: object) -> Iterator[None]:
    """Everything inside is about these, beside what is known already; None and the empty string say nothing."""
    added = {name: str(value) for name, value in ids.items() if value is not None and value != ""}
    token = _KNOWN.set({**_KNOWN.get(), **added})
    try:
        yield
    finally:
        _KNOWN.reset(token)


@contextlib.contextmanager
def only(ids: Ids) -> Iterator[None]:
    """Everything inside is about these alone: for work on behalf of several, from within one of them."""
    own, came = _KNOWN.set(ids), _CAME.set(b"")
    try:
        yield
    finally:
        _KNOWN.reset(own)
        _CAME.reset(came)


def ids_of(message: Any) -> dict[str, str]:
    """What a message says about itself, for `about`."""
    found = {name: getattr(message, field, None) for field, name in _FIELDS.items()}
    return {name: str(value) for name, value in found.items() if isinstance(value, str | int)}


def common(parts: Sequence[Ids]) -> Ids:
    """What holds for all of them."""
    first = parts[0]
    if all(part is first for part in parts):
        return first
    return {n: v for n, v in first.items() if all(part.get(n) == v for part in parts)}


def came_with(header: bytes) -> None:
    """The rest of this task is about what the header of its request names. Read when somebody asks."""
    _CAME.set(header if len(header) <= _MOST else b"")


def baggage() -> str:
    """The ids as a header's value; empty where nothing is known.

    Of what came with a request only our own members go on, written anew: whoever calls must not choose what engines get.
    """
    ids = known()
    return _written(tuple(ids.items())) if ids else ""


def carried() -> dict[str, str]:
    """The header that takes the ids along, or nothing."""
    value = baggage()
    return {HEADER: value} if value else {}


@lru_cache(maxsize=512)
def _written(ids: tuple[tuple[str, str], ...]) -> str:
    parts = [f"{_PREFIX}{name}={quote(value[:_LONGEST], safe='')}" for name, value in ids]
    text = ",".join(parts)
    return text if len(text) <= _MOST else ""


@lru_cache(maxsize=512)
def _read(header: bytes) -> Ids:
    """Our members of the header; whoever calls may write anything there."""
    found = {}
    for member in header.decode("latin-1").split(","):
        name, _, value = member.partition(";")[0].strip().partition("=")
        plain = name.strip().removeprefix(_PREFIX)
        if name.strip().startswith(_PREFIX) and plain in NAMES:
            found[plain] = unquote(value.strip())[:_LONGEST]
    return found
