"""The life of one task slot: the place in a pool that a task and all its rewrites hold, one at a time.

`active -> pending -> accepted | rejected`, and `rolled_back` when an accepted rewrite is taken back. Transitions are
pure: they return a new slot, so that storing it is one write. Nothing is forgotten: every candidate keeps its fate.

Source: arXiv 2602.02488, section 2; fates and roll-back are ours (the released code forgets rejected rewrites).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from triforge.errors import ConflictError

Fate = Literal["accepted", "rejected", "rolled_back"]


@dataclass(frozen=True, slots=True)
class Pending:
    """A rewrite that is being measured."""

    candidate_id: str
    direction: Literal["harder", "easier"]


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """One slot.

    Attributes:
        active_id: the task version that is played and trained on.
        pending: the rewrite being measured, if any; at most one at a time.
        ancestors: the versions that accepted rewrites replaced, oldest first.
        fates: what became of every measured candidate, (id, fate), oldest first.
    """

    active_id: str
    pending: Pending | None = None
    ancestors: tuple[str, ...] = ()
    fates: tuple[tuple[str, Fate], ...] = ()

    @property
    def state(self) -> Literal["active", "pending"]:
        """`pending` while a rewrite is being measured."""
        return "pending" if self.pending else "active"

    def propose(self, candidate_id: str, direction: Literal["harder", "easier"]) -> TaskSlot:
        """Start measuring a rewrite of the active version.

        Raises:
            ConflictError: another rewrite is pending, or the id was used in this slot before.
        """
        if self.pending:
            raise ConflictError(
                f"slot of {self.active_id}: given a new rewrite, expected none while {self.pending.candidate_id} is pending"
            )
        if candidate_id in {self.active_id, *self.ancestors, *(name for name, _ in self.fates)}:
            raise ConflictError(
                f"slot of {self.active_id}: given the rewrite {candidate_id}, expected an id that this slot never held"
            )
        return replace(self, pending=Pending(candidate_id, direction))

    def accept(self, candidate_id: str) -> TaskSlot:
        """The pending rewrite becomes the active version.

        Raises:
            ConflictError: this rewrite is not pending.
        """
        self._demand_pending(candidate_id)
        return TaskSlot(
            active_id=candidate_id,
            ancestors=(*self.ancestors, self.active_id),
            fates=(*self.fates, (candidate_id, "accepted")),
        )

    def reject(self, candidate_id: str) -> TaskSlot:
        """The pending rewrite is given up; the active version stays.

        Raises:
            ConflictError: this rewrite is not pending.
        """
        self._demand_pending(candidate_id)
        return replace(self, pending=None, fates=(*self.fates, (candidate_id, "rejected")))

    def roll_back(self) -> TaskSlot:
        """Take the last accepted rewrite back: the version before it is active again.

        Raises:
            ConflictError: a rewrite is pending, or the slot holds its first version.
        """
        if self.pending or not self.ancestors:
            held = f"{self.pending.candidate_id} pending" if self.pending else "no ancestor"
            raise ConflictError(
                f"slot of {self.active_id}: given a roll-back with {held}, expected an accepted rewrite and none pending"
            )
        return TaskSlot(
            active_id=self.ancestors[-1],
            ancestors=self.ancestors[:-1],
            fates=(*self.fates, (self.active_id, "rolled_back")),
        )

    def _demand_pending(self, candidate_id: str) -> None:
        if self.pending is None or self.pending.candidate_id != candidate_id:
            held = self.pending.candidate_id if self.pending else "nothing"
            raise ConflictError(
                f"slot of {self.active_id}: given a verdict on {candidate_id}, expected the pending rewrite ({held})"
            )
