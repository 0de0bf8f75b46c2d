"""Wrong votes on steps whose label is known: on either side, and by the kind of action."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_KINDS: Final = 12  # kinds of actions that are counted, the most frequent


class VoteErrors(NamedTuple):
    """Counts of votes on steps labelled +1 (`good`) and -1 (`bad`), and how many of them are wrong; a vote that cannot be read is."""

    good: int
    missed: int
    bad: int
    praised: int

    @property
    def votes(self) -> int:
        """The number of votes."""
        return self.good + self.bad

    @property
    def wrong(self) -> float:
        """The share of wrong votes."""
        return (self.missed + self.praised) / self.votes

    @property
    def balanced(self) -> float | None:
        """The mean of the hit rates of both sides; None without steps of one."""
        if not (self.good and self.bad):
            return None
        return 1 - (self.missed / self.good + self.praised / self.bad) / 2


def vote_errors(votes: Iterable[tuple[int, int]]) -> VoteErrors:
    """Count the errors of (label, vote)."""
    wrong: dict[int, list[bool]] = {1: [], -1: []}
    for label, value in votes:
        wrong[label].append(value != label)
    good, bad = wrong[1], wrong[-1]
    return VoteErrors(len(good), sum(good), len(bad), sum(bad))


def errors_by_kind(votes: Iterable[tuple[int, int, str]]) -> dict[str, VoteErrors]:
    """Count the errors of (label, vote, action) by the first word of the action, the most frequent first."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for label, value, action in votes:
        word = next(iter(action.lower().split()), "none")[:20]
        kinds.setdefault(word, []).append((label, value))
    named = sorted(kinds, key=lambda word: (-len(kinds[word]), word))[:_KINDS]
    return {word: vote_errors(kinds[word]) for word in named}
