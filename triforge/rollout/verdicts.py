"""Verdicts of a judge as text."""

from __future__ import annotations

import re
from typing import Final, Literal

_BOX: Final = "\\boxed{"
_SCORE: Final = re.compile(r"\s*([+-]?)1\s*\}")

ANSWERS: Final[dict[Literal[-1, 1], str]] = {1: r"\boxed{1}", -1: r"\boxed{-1}"}
"""The text of each vote, which a supervised judge learns."""


def parse_vote(text: str) -> Literal[-1, 0, 1]:
    r"""Parse the vote in a judge's answer: the last `\boxed{...}` must hold exactly `1`, `+1` or `-1`, else the vote is 0.

    White space inside the braces is allowed. A last box that never closes hides the ones before it: the answer was cut off or
    retracted. The strict rule (the GUI setting's; arXiv 2602.02488) holds for all environments: the lenient one accepts
    `step 3: -1` and turns a slip of the format into a vote, so the format is never learned.
    """
    last = text.rfind(_BOX)
    found = _SCORE.match(text, last + len(_BOX)) if last >= 0 else None
    if found is None:
        return 0
    return -1 if found[1] == "-" else 1
