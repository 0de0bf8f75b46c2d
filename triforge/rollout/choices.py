"""Closed choices as a regular expression that holds a decoder to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_META: Final = frozenset(r"\.^$|?*+()[]{}")


def escape(text: str) -> str:
    """`text` as a regular expression that every engine reads alike (Python's own also escapes spaces, which some refuse)."""
    return "".join(f"\\{letter}" if letter in _META else letter for letter in text)


def one_of(choices: Iterable[str]) -> str | None:
    """An expression that matches exactly the choices; None when there are none, which constrains nothing."""
    return "|".join(map(escape, choices)) or None
