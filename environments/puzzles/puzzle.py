"""Puzzles and their verifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One puzzle: its question, an answer that solves it, and its verifier.

    `verify` returns the share of the question that an answer solves, in [0, 1], 1 for every right answer and no other. It raises a
    ValueError for an answer that it cannot read.
    """

    question: str
    answer: str
    verify: Callable[[str], float]


Maker = Callable[[Random, int], Puzzle]
"""Makes a puzzle of a level 0, 1, 2, ..., each larger than the one below."""


def exact(answer: object) -> Callable[[str], float]:
    """Return the verifier of a number, which is right or wrong."""
    return lambda given: float(int(given) == answer)


def same_places(right: Sequence[str]) -> Callable[[str], float]:
    """Return the verifier of a row of words: the share of right places, less for too many words."""

    def verify(given: str) -> float:
        words = given.replace(",", " ").split()
        hits = sum(a == b for a, b in zip(words, right, strict=False))
        return hits / max(len(words), len(right))

    return verify


def numbers(given: str) -> list[int]:
    """Read whole numbers with spaces or commas between them."""
    return [int(word) for word in given.replace(",", " ").split()]


def demand(readable: bool, what: str) -> None:
    """Raise a ValueError with the expected form, unless the answer can be read."""
    if not readable:
        raise ValueError(f"expected {what}")


def row(values: Sequence[object]) -> str:
    """Join values with spaces between them."""
    return " ".join(map(str, values))
