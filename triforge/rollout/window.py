"""The window: the distance by which playing may run ahead of learning.

A round is the groups of one plan, those that one step plays. With a staleness bound S the slots of S + 1 rounds are in
flight. Step s trains on as many groups as round s has, but on the oldest judged groups of any round. A group that was
offered after s0 steps may be trained on up to step s0 + S + 1; then the weights are at most S versions newer than its
oldest token. There are exactly as many groups as places in the steps of the run, so no offered group is left over at the
end, however small a pool makes its rounds.

`late` decides about slow groups:

- `wait`: a batch waits if without it more old groups would remain than the following steps have room for. No group is
  ever older than the bound.
- `mask`: no batch waits. A slow group is trained on once it arrives, but only on its tokens within the bound.

S = 0 is the synchronous loop: a round is offered, all of it is trained on, new weights go live, the next is offered.

    >>> window = Window(staleness_bound=1, steps=3)
    >>> window.offer(("a",)); window.offer(("b",))     # both played with version 0
    >>> window.open_rounds()
    range(3, 3)
    >>> window.arrived("b")                            # b is faster
    >>> window.begin()
    ('b',)
    >>> window.advance(1, 0)
    >>> window.offer(("c",)); window.arrived("c")      # played with version 1
    >>> window.batch() is None                         # c waits: a would become staler than 1
    True
    >>> window.arrived("a")
    >>> window.begin()
    ('a',)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triforge.errors import ConflictError, InputError


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of a group: its round, the number of steps done before, and the live version of each model of the run."""

    round: int
    step: int
    versions: tuple[int, ...]


class Window:
    """Rounds in flight, and the versions at which each group was offered.

    Args:
        staleness_bound: S, the number of versions by which a trained token may lag behind; 0 is synchronous.
        versions: active version of each of the run's models, in an order that the caller chooses.

    Attributes:
        step: the number of steps done.
        versions: the live version of each model.
        training: the batch of the step under way, None between two steps.
    """

    def __init__(
        self,
        staleness_bound: int,
        steps: int,
        *,
        step: int = 0,
        versions: Sequence[int] = (0, 0),
        late: Literal["wait", "mask"] = "wait",
    ) -> None:
        if min(staleness_bound, step, *versions, steps - step) < 0:
            raise InputError(
                f"window: given staleness_bound {staleness_bound}, step {step} of {steps}, versions {(*versions,)}, "
                "expected nothing below 0 and no step past the last"
            )
        self._bound, self._steps, self._late = staleness_bound, steps, late
        self.step, self.versions = step, tuple(versions)
        # Places of the coming steps whose round was offered; the keys run from step + 1 to the newest round.
        self._places: dict[int, int] = {}
        self._offers: dict[str, Offer] = {}  # insertion order is age
        self._arrived: set[str] = set()
        self.training: tuple[str, ...] | None = None

    @property
    def offers(self) -> dict[str, Offer]:
        """Groups in flight, oldest first; those of the step under way stay until `advance`."""
        return dict(self._offers)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Groups that were offered and have not arrived, oldest first."""
        return tuple(group for group in self._offers if group not in self._arrived)

    def open_rounds(self) -> range:
        """Return the rounds that may be offered now."""
        first = self.step + len(self._places) + 1
        last = min(self._steps, self.step + self._bound + 1)
        return range(first, last + 1 if self.training is None else first)

    def offer(self, group_ids: Sequence[str]) -> None:
        """Put the groups of the next open round, perhaps none, in flight at the live versions.

        Raise ConflictError if no round is open, or a group is in flight already.
        """
        rounds = self.open_rounds()
        known = set(group_ids) & self._offers.keys()
        if not rounds or known or len(set(group_ids)) < len(group_ids):
            raise ConflictError(
                f"window: given a round of {list(group_ids)}, expected groups not in flight and room for a round "
                f"(run.staleness_bound {self._bound} keeps {self._bound + 1} in flight)"
            )
        for group in group_ids:
            self._offers[group] = Offer(rounds[0], self.step, self.versions)
        self._places[rounds[0]] = len(group_ids)

    def arrived(self, group_id: str) -> None:
        """Mark a group as played and judged. Idempotent; raise ConflictError if it is not in flight."""
        if group_id not in self._offers:
            raise ConflictError(f"window: given {group_id!r}, expected a group in flight")
        self._arrived.add(group_id)

    def batch(self) -> tuple[str, ...] | None:
        """Return the groups to train on next, oldest first; None while a group is missing or a step is under way."""
        if self.training is not None or self.step + 1 not in self._places:
            return None
        ready = [group for group in self._offers if group in self._arrived]
        chosen = tuple(ready[: self._places[self.step + 1]])
        if len(chosen) < self._places[self.step + 1] or not self._leaves_room(chosen):
            return None
        return chosen

    def begin(self) -> tuple[str, ...]:
        """Begin the step with the groups of `batch`, which are then fixed; raise ConflictError if there is no batch."""
        chosen = self.batch()
        if chosen is None:
            raise ConflictError("window: a step was begun before its batch was complete")
        self.training = chosen
        return chosen

    def advance(self, *versions: int) -> None:
        """End the step: its groups leave their slots, and these versions are live.

        A version is the next one, or the same if the step trained nothing. Raise ConflictError if no step was begun, or if
        a version is skipped.
        """
        if self.training is None:
            raise ConflictError(
                f"window: given versions {versions} without a trained batch, expected begin() first"
            )
        for version, live in zip(versions, self.versions, strict=True):
            if version not in (live, live + 1):
                raise ConflictError(
                    f"window: given version {version} after {live}, expected {live + 1}"
                )
        for group in self.training:
            del self._offers[group]
            self._arrived.discard(group)
        self.training = None
        self.step += 1
        del self._places[self.step]
        self.versions = versions

    def renumber(self, *versions: int) -> None:
        """Give the same weights other version numbers: all groups in flight are played again, under these versions.

        The step by which a group must be trained on does not change.
        """
        self.versions = versions
        self._offers = {
            group: Offer(offer.round, offer.step, versions) for group, offer in self._offers.items()
        }
        self._arrived.clear()
        self.training = None

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as JSON-able values."""
        return {
            "staleness_bound": self._bound,
            "steps": self._steps,
            "late": self._late,
            "step": self.step,
            "versions": list(self.versions),
            "places": [[number, count] for number, count in self._places.items()],
            "offers": [[name, o.round, o.step, *o.versions] for name, o in self._offers.items()],
            "training": None if self.training is None else list(self.training),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Window:
        """Return the window of a snapshot; none of its groups has arrived, they are looked for again."""
        window = cls(
            state["staleness_bound"],
            state["steps"],
            step=state["step"],
            versions=state["versions"],
            late=state["late"],
        )
        window._places = dict(state["places"])
        window._offers = {
            name: Offer(number, step, tuple(versions))
            for name, number, step, *versions in state["offers"]
        }
        window.training = None if state["training"] is None else tuple(state["training"])
        return window

    def _leaves_room(self, chosen: tuple[str, ...]) -> bool:
        """Return whether the remaining groups can all be trained on in time."""
        if self._late == "mask":
            return True
        due = [o.step + self._bound + 1 for group, o in self._offers.items() if group not in chosen]
        room = 0
        for step in range(self.step + 1, self.step + self._bound + 2):
            room += self._places.get(step, 0) if step > self.step + 1 else 0
            if sum(last <= step for last in due) > room:
                return False
        return True
