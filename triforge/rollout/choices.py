"""Closed choices as a regular expression that constrains a decoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_META: Final = frozenset(r"\.^$|?*+()[]{}")


def escape(text: str) -> str:
    """Escape a text for the regular expressions of all engines; some refuse the escaped spaces of `re.escape`."""
    return "".join(f"\\{letter}" if letter in _META else letter for letter in text)


def one_of(choices: Iterable[str]) -> str | None:
    """Return an expression that matches exactly the choices; None without choices, which constrains nothing."""
    return "|".join(map(escape, choices)) or None
