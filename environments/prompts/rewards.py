"""Reward functions to begin with; `--reward environments.prompts.rewards:exact` names one."""

from __future__ import annotations


def exact(completions: list[str], answer: list[object], **_: object) -> list[float]:
    """Return 1 where the last word is the column `answer`, else 0."""
    words = (completion.split()[-1:] for completion in completions)
    return [float(last == [str(one)]) for last, one in zip(words, answer, strict=True)]
