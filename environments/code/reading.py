"""The way back from a statement to its operations, by a grammar that does not use the table of sentences.

A rewrite that changed what is rewarded without changing what is announced, or the other way round, is caught here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from environments.code.operations import Kind

_KINDS: Final[dict[str, Kind]] = {
    r"a list of whole numbers\b": "numbers",
    r"some words\b": "words",
    r"a picture\b": "grid",
}
_STEPS: Final[dict[Kind, dict[str, str]]] = {
    "numbers": {
        r"keep only the even": "even", r"keep only the odd": "odd", r"reverse": "reverse", r"sort .* small to large": "sort",
        r"of equal numbers": "unique", r"add (\d+) to": "add", r"drop the multiples of (\d+)": "drop_multiples",
        r".*\bremainder when divided by (\d+), .* 0 and \1 - 1": "remainder", r"move the first number to the end": "shift",
        r".*\bby its square": "square", r".*\bdifferences of neighbours: each number minus the one before": "differences",
        r".*\bthe sum of all numbers up to": "totals",
    },
    "words": {
        r"reverse": "reverse", r"sort the words alphabetically": "sort", r"of equal words": "unique",
        r"write every word backwards": "backwards", r"drop the words with fewer than (\d+)": "drop_short",
        r"sort the words by their length, the shortest first": "by_length", r".*\bswap the first and the last letter": "first_last",
        r"delete the letters a, e, i, o and u": "no_vowels", r"keep the first word, the third": "every_other",
    },
    "grid": {
        r"mirror .*left becomes right": "mirror", r".*upside down": "flip", r"swap lines and columns": "transpose",
        r"replace every # by a \. and every \. by a #": "invert", r"let every # fall down": "fall",
        r"move the last line to the top": "down", r"move the last column to the front": "right",
        r"take away the first line": "crop",
    },
}  # fmt: skip
_FINALS: Final[dict[Kind, dict[str, str]]] = {
    "numbers": {
        r"the sum of the numbers": "sum", r"how many": "count", r"the largest": "largest", r"the numbers separated": "list",
        r"the first number minus the second": "alternating",
    },
    "words": {
        r"how many words": "count", r"how many letters": "letters", r"the words separated": "line",
        r"the first letters": "initials", r"the longest": "longest",
    },
    "grid": {
        r"how many # there are": "count", r"the picture": "picture", r"how many # stand in the first line": "first_line",
        r"how many groups": "regions", r"the size of the largest group": "largest",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Announced:
    """What a statement asks for."""

    kind: Kind
    steps: tuple[str, ...]
    final: str


def read(text: str) -> Announced | None:
    """What a statement asks for, or None when it is not one of ours."""
    lines = [" ".join(line.lower().split()) for line in text.splitlines()]
    kinds = [kind for pattern, kind in _KINDS.items() if lines and re.search(pattern, lines[0])]
    finals = [line.removeprefix("then print ") for line in lines if line.startswith("then print ")]
    if len(kinds) != 1 or len(finals) != 1:
        return None
    kind = kinds[0]
    numbered = [found[1] for line in lines if (found := re.fullmatch(r"\d+\. (.*)", line))]
    steps = [_matched(_STEPS[kind], line) for line in numbered]
    final = _matched(_FINALS[kind], finals[0])
    if final is None or not all(steps):
        return None
    return Announced(kind, tuple(step for step in steps if step), final)


def _matched(table: dict[str, str], sentence: str) -> str | None:
    for pattern, name in table.items():
        if found := re.match(pattern, sentence):
            return f"{name}:{found[1]}" if found.groups() else name
    return None
