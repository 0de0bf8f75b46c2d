r"""Reading a vote. Strict: a judge that cannot say `\boxed{1}` has not voted.

The strict rule (the GUI setting's; arXiv 2602.02488) is taken for all environments. The lenient one accepts
`step 3: -1` and turns a slip of the format into a vote, so the format is never learned.
"""

from __future__ import annotations

import re
from typing import Final, Literal

_BOX: Final = re.compile(r"\\boxed\{")
_SCORES: Final[dict[str, Literal[-1, 1]]] = {"1": 1, "+1": 1, "-1": -1}

ANSWERS: Final[dict[Literal[-1, 1], str]] = {1: r"\boxed{1}", -1: r"\boxed{-1}"}
"""How a vote is written; what a supervised judge is taught to say."""


def parse_vote(text: str) -> Literal[-1, 0, 1]:
    r"""The vote in a judge's answer: the last `\boxed{...}` must hold exactly `1`, `+1` or `-1`, else the vote is 0.

    White space inside the braces is allowed. A last box that never closes hides the ones before it: the answer was cut
    off or retracted.
    """
    opened = list(_BOX.finditer(text))
    if not opened:
        return 0
    inside = _until_closed(text, opened[-1].end())
    return 0 if inside is None else _SCORES.get(inside.strip(), 0)


def _until_closed(text: str, start: int) -> str | None:
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    return None
