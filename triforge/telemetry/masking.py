"""Secrets that must not stand in logs: those that this process was given, and whatever looks like one."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"
_SHORTEST: Final = 6  # a shorter value would be found inside of harmless words
_LOOKS: Final = (
    (  # with a digit or long: "a basic question" is none
        re.compile(r"(?i)\b(bearer|basic)(\s+)(?=\S*\d|\S{20})[A-Za-z0-9._~+/=-]{6,}"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"), rf"\1{MASK}"),  # a password in an address
    (re.compile(r"\b(tfk_[0-9a-f]{12}_)[A-Za-z0-9_-]+"), rf"\1{MASK}"),  # a key; its id may be seen
    (
        re.compile(
            r"(?i)\b((?:[a-z0-9_-]{0,40}[_-])?(?:api[_-]?key|admin[_-]?api[_-]?key|password|passwd|secret|token))"
            r"(\"?\s*[=:]\s*\"?)(?!\*|\d+\b)[^\s\"',;&]{6,}"
        ),
        rf"\1\2{MASK}",
    ),
)

_given: set[str] = set()
_pattern: re.Pattern[str] | None = None


def hide(*values: str) -> None:
    """From now on these are masked wherever they stand; empty and very short ones are passed over."""
    global _pattern
    _given.update(value for value in values if len(value) >= _SHORTEST)
    ordered = sorted(_given, key=len, reverse=True)  # one may be the beginning of another
    _pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None


def masked(text: str) -> str:
    """The text without secrets."""
    if _pattern is not None:
        text = _pattern.sub(MASK, text)
    for look, instead in _LOOKS:
        text = look.sub(instead, text)
    return text
