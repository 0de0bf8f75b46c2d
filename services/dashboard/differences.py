"""What a rewrite changed, word by word."""

from __future__ import annotations

import difflib
import re
from typing import Literal

Part = tuple[Literal["same", "gone", "new"], str]


def differences(before: str, after: str) -> list[Part]:
    """The parts of both texts in reading order; `same` and `gone` together are `before`, `same` and `new` are `after`."""
    old, new = _words(before), _words(after)
    found: list[Part] = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            found.append(("same", "".join(old[a:b])))
            continue
        if b > a:
            found.append(("gone", "".join(old[a:b])))
        if d > c:
            found.append(("new", "".join(new[c:d])))
    return found


def _words(text: str) -> list[str]:
    """Words and the space between them; joined they are the text."""
    return re.findall(r"\s+|\w+|[^\w\s]", text)
