"""The window: how far playing may run ahead of learning.

A round is what one step plays: the groups of one plan. With a staleness bound S the slots of S + 1 rounds are in flight.
Step s trains on as many groups as round s has, but not on the same ones: on the oldest that are judged. A group that was
offered when s0 steps were done may be trained on up to step s0 + S + 1; then the weights are at most S versions newer
than its oldest token. There are exactly as many groups as places in the steps of the run, so nothing that was offered is
left over at the end, however small a pool makes its rounds.

What becomes of a group that is too slow is `late`:

- `wait`: a batch is held back while taking it would leave more old groups than the following steps have room for. No
  group is ever older than the bound.
- `mask`: nobody waits. A slow group is trained on when it comes; of its tokens only those within the bound.

S = 0 is the synchronous loop: a round is offered, all of it is trained on, new weights go live, the next is offered.

    >>> window = Window(staleness_bound=1, steps=3)
    >>> window.next_round()
    1
    >>> window.offer(("a",)); window.offer(("b",))     # both played with version 0
    >>> window.next_round() is None
    True
    >>> window.arrived("b")                            # b is faster
    >>> window.batch()
    ('b',)
    >>> window.begin()
    ('b',)
    >>> window.advance(1, 0)
    >>> window.next_round()
    3
    >>> window.offer(("c",)); window.arrived("c")      # played with version 1
    >>> window.batch() is None                         # c must wait: a may not become staler than 1
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
    """When a group was offered: its round, how many steps were done, and the live version of each of the run's models."""

    round: int
    step: int
    versions: tuple[int, ...]


class Window:
    """Rounds in flight, and the versions each group was offered at.

    Args:
        staleness_bound: S, how many versions a trained token may lag behind; 0 is synchronous.
        versions: active version of each of the run's models, in an order of the caller's.

    Attributes:
        step: how many steps are done.
        versions: the live version of each model.
        training: the batch that a step has begun with, None between two steps.
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
        # Places of the steps to come whose round was offered; the keys run from step + 1 to the newest round.
        self._places: dict[int, int] = {}
        self._offers: dict[str, Offer] = {}  # insertion order is age
        self._arrived: set[str] = set()
        self.training: tuple[str, ...] | None = None

    @property
    def offers(self) -> dict[str, Offer]:
        """Groups in flight, oldest first; those being trained on stay until `advance`."""
        return dict(self._offers)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Groups that were offered and have not arrived, oldest first."""
        return tuple(group for group in self._offers if group not in self._arrived)

    def next_round(self) -> int | None:
        """The round that may be offered now, if there is room for one."""
        return next(iter(self.open_rounds()), None)

    def open_rounds(self) -> range:
        """The rounds that may be offered now."""
        newest = self.step + len(self._places)
        last = min(self._steps, self.step + self._bound + 1)
        return range(newest + 1, last + 1) if self.training is None else range(0)

    def offer(self, group_ids: Sequence[str]) -> None:
        """Put the groups of `next_round()`, perhaps none, in flight at the live versions.

        A ConflictError says that there is no room for a round, or that a group is in flight already.
        """
        number = self.next_round()
        known = set(group_ids) & self._offers.keys()
        if number is None or known or len(set(group_ids)) < len(group_ids):
            raise ConflictError(
                f"window: given a round of {list(group_ids)}, expected groups not in flight and room for a round "
                f"(run.staleness_bound {self._bound} keeps {self._bound + 1} in flight)"
            )
        for group in group_ids:
            self._offers[group] = Offer(number, self.step, self.versions)
        self._places[number] = len(group_ids)

    def arrived(self, group_id: str) -> None:
        """The group is played and judged. To say it twice is the same as once; a ConflictError if it is not in flight."""
        if group_id not in self._offers:
            raise ConflictError(f"window: given {group_id!r}, expected a group in flight")
        self._arrived.add(group_id)

    def batch(self) -> tuple[str, ...] | None:
        """The groups to train on next, oldest first; None while some have to be waited for or a step is under way."""
        if self.training is not None or self.step + 1 not in self._places:
            return None
        ready = [group for group in self._offers if group in self._arrived]
        chosen = tuple(ready[: self._places[self.step + 1]])
        if len(chosen) < self._places[self.step + 1] or not self._leaves_room(chosen):
            return None
        return chosen

    def begin(self) -> tuple[str, ...]:
        """Begin the step on the groups of `batch`, its groups from now on whatever happens; a ConflictError without one."""
        chosen = self.batch()
        if chosen is None:
            raise ConflictError("window: a step was begun before its batch was there")
        self.training = chosen
        return chosen

    def advance(self, *versions: int) -> None:
        """The step is done, its groups leave their slots and these versions are live.

        A version is the next one, or the same when the step had nothing to learn from. A ConflictError says that no step
        was begun, or that a version skips.
        """
        if self.training is None:
            raise ConflictError(
                f"window: given versions {versions} without a trained batch, expected begin() first"
            )
        for given, live in zip(versions, self.versions, strict=True):
            if given not in (live, live + 1):
                raise ConflictError(
                    f"window: given version {given} after {live}, expected {live + 1}"
                )
        for group in self.training:
            del self._offers[group]
            self._arrived.discard(group)
        self.training = None
        self.step += 1
        del self._places[self.step]
        self.versions = versions

    def renumber(self, *versions: int) -> None:
        """The same weights have other numbers now: what is in flight is played afresh, under these.

        No group becomes older by it: when it has to be trained on does not change.
        """
        self.versions = versions
        self._offers = {
            group: Offer(offer.round, offer.step, versions) for group, offer in self._offers.items()
        }
        self._arrived.clear()
        self.training = None

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON-able values."""
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
        """The window that `snapshot` described; an InputError if it is not one that a window can be in.

        Of its groups none has arrived: they are looked for again.
        """
        try:
            window = cls(
                state["staleness_bound"], state["steps"], step=state["step"], versions=state["versions"],
                late=state["late"],
            )  # fmt: skip
            window._places = dict(state["places"])
            window._offers = {
                name: Offer(number, step, tuple(versions))
                for name, number, step, *versions in state["offers"]
            }
            pinned = state["training"]
            window.training = None if pinned is None else tuple(pinned)
            possible = window._is_possible()
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"window: given a snapshot that does not parse ({error})") from None
        if not possible:
            raise InputError(
                f"window: given a snapshot at step {window.step} with {len(window._offers)} groups in flight that "
                "contradicts its own bounds"
            )
        return window

    def _leaves_room(self, chosen: tuple[str, ...]) -> bool:
        """Whether the groups that stay can all still be trained on in time: none is due before there is room for it."""
        if self._late == "mask":
            return True
        due = [o.step + self._bound + 1 for group, o in self._offers.items() if group not in chosen]
        room = 0
        for step in range(self.step + 1, self.step + self._bound + 2):
            room += self._places.get(step, 0) if step > self.step + 1 else 0
            if sum(last <= step for last in due) > room:
                return False
        return True

    def _is_possible(self) -> bool:
        rounds = list(self._places)
        return (
            rounds == list(range(self.step + 1, self.step + 1 + len(rounds)))
            and len(rounds) <= self._bound + 1
            and sum(self._places.values()) == len(self._offers)
            and set(self.training or ()) <= self._offers.keys()
            and (self.training is None or len(self.training) == self._places[self.step + 1])
            and all(0 <= o.step <= self.step for o in self._offers.values())
            and all(
                len(o.versions) == len(self.versions)
                and all(then <= now for then, now in zip(o.versions, self.versions, strict=True))
                for o in self._offers.values()
            )
        )
