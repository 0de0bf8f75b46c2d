r"""Which part of a response is the action: all of it, its last line, or what stands in its last `\boxed{}` or `<answer>` tag."""

from __future__ import annotations

import re
from typing import Final, Literal

Answer = Literal["whole", "last_line", "boxed", "tag"]
Marked = Literal["boxed", "tag"]

HOW_TO_ANSWER: Final[dict[Answer, str]] = {
    "whole": "Answer with {what} only.",
    "last_line": "Think first if you like; the last line of your answer must be {what} only.",
    "boxed": "Think first, then write {what} in \\boxed{{}}.",
    "tag": "Think first, then write {what} between <answer> and </answer>.",
}
"""The sentence that tells a policy how to answer; `what` is what it is to write."""

_OPEN, _CLOSE = "<answer>", "</answer>"
_BOXED = "\\boxed{"


def part_of(response: str, answer: Answer) -> str:
    """The part of a response that is the action; empty when there is none."""
    if answer == "last_line":
        lines = [line for line in response.splitlines() if line.strip()]
        return lines[-1] if lines else ""
    if answer == "boxed":
        return _last_boxed(response)
    if answer == "tag":
        before, found, _ = response.rpartition(_CLOSE)
        return before.rpartition(_OPEN)[2] if found and _OPEN in before else ""
    return response


def wrapped(said: str, answer: Answer) -> str:
    """`said` as a response of which it is the action."""
    if answer == "tag":
        return f"{_OPEN}{said}{_CLOSE}"
    return f"\\boxed{{{said}}}" if answer == "boxed" else said


def _last_boxed(text: str) -> str:
    r"""The content of the last `\boxed{}` whose braces balance; empty when there is none. One pass over the braces."""
    opened: list[int] = []
    last = (0, 0)
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            start = opened.pop()
            if start > last[0] and text.endswith(_BOXED, 0, start):
                last = start, brace.start()
    return text[slice(*last)]
