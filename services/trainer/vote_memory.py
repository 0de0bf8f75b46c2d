"""What the run's latest groups said about the votes, kept in the orchestrator's notes so that a restart forgets nothing.

The notes hold, under `votes`, one entry a step: its number and one row of counts a group. A step is credited with what
the steps before it said; recording a step twice is the same as once. So a repeated step gets the same trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.theory import GroupVotes, Theory, estimate, trust

NOTE = "votes"


class VoteMemory:
    """A window of `algorithm.trust_groups` groups.

    Args:
        notes: the orchestrator's notes on the run; only the entry `NOTE` is read and written.
        algorithm: reads `trust_groups`.
    """

    def __init__(self, notes: dict[str, Any], algorithm: Algorithm) -> None:
        self._notes = notes
        self._size = algorithm.trust_groups

    def before(self, step: int) -> list[GroupVotes]:
        """The latest groups of the steps before `step`."""
        rows = [row for number, rows in self._entries() if number < step for row in rows]
        return [GroupVotes(*row) for row in rows[-self._size :]]

    def trust(self, step: int) -> float:
        """Trust in the votes of `step`, see `triforge.algorithms.theory.trust`."""
        return trust(self.before(step))

    def estimate(self, step: int) -> Theory:
        """Everything known after `step`; empty when nothing was judged."""
        return estimate(self.before(step + 1))

    def remember(self, step: int, groups: Sequence[GroupVotes]) -> None:
        """Put the groups of a step into the notes.

        What lies before the window is dropped, but nothing that `before(step)` reads.
        """
        kept: list[Any] = []
        held = 0
        for number, rows in reversed([e for e in self._entries() if e[0] < step]):
            if held >= self._size:
                break
            kept.insert(0, [number, rows])
            held += len(rows)
        judged = [list(g.as_row()) for g in groups if g.successes + g.failures]
        self._notes[NOTE] = [*kept, [step, judged]]

    def _entries(self) -> list[Any]:
        entries: list[Any] = self._notes.get(NOTE, [])
        return entries
