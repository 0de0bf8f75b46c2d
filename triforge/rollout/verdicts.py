"""Verdicts of a judge as text."""

from __future__ import annotations

import re
from typing import Final, Literal

_BOX: Final = "\\boxed{"
_SCORE: Final = re.compile(r"\s*([+-]?)1\s*\}")

ANSWERS: Final[dict[Literal[-1, 1], str]] = {1: r"\boxed{1}", -1: r"\boxed{-1}"}
"""The text of each vote, which a supervised judge learns."""


def parse_vote(text: str) -> Literal[-1, 0, 1]:
    """Parse the vote in a judge's answer, 0 if there is none; see `parse_votes`."""
    return next(iter(parse_votes(text, 1)), 0)


def parse_votes(text: str, count: int) -> tuple[Literal[-1, 1], ...]:
    r"""Parse the last `count` votes in a judge's answer; empty unless each of the last boxes `\boxed{...}` holds exactly `1`, `+1` or `-1`.

    White space inside the braces is allowed. A last box that never closes hides the ones before it: the answer was cut off or
    retracted. Boxes in thoughts (up to `</think>`, or to the end if they do not end) are not votes. The strict rule (the GUI
    setting's; arXiv 2602.02488) holds for all environments: the lenient one accepts `step 3: -1` and turns a slip of the format
    into a vote, so the format is never learned.
    """
    before, _, verdict = text.rpartition("</think>")
    end = 0 if not before and verdict.lstrip().startswith("<think>") else len(verdict)
    votes: list[Literal[-1, 1]] = []
    while len(votes) < count:
        end = verdict.rfind(_BOX, 0, end)
        found = _SCORE.match(verdict, end + len(_BOX)) if end >= 0 else None
        if found is None:
            return ()
        votes.append(-1 if found[1] == "-" else 1)
    return tuple(reversed(votes))
