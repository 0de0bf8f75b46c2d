"""The window of slots: how far playing may run ahead of learning.

Ledger. Consumes: offers of groups, news that they were judged or lost, news that weights went live. Waits for: nothing,
it never blocks; it answers what may happen now. Produces: permission to offer a group, and the batch to train on next.
Unblocked by: `publish` (a trained batch leaves its slots) and `dropped` (a lost group leaves its slot).

A slot is the right to have one group in flight. With P groups a step and a staleness bound S there are (S + 1) * P
slots. A group remembers the version that was live when it was offered; trained at version v it is `v - offered` stale.
The window keeps every trained group within S without discarding any because it was slow: the next batch is the oldest
judged groups, and it is held back while taking it would leave more old groups than the following steps have room for.
S = 0 is the synchronous loop: P groups are offered, all are trained on, new weights go live, P groups are offered.

    >>> window = Window(staleness_bound=1, groups_per_step=1)
    >>> window.free_slots
    2
    >>> window.offer("a"); window.offer("b")     # both played with version 0
    >>> window.arrived("b")                      # b is faster
    >>> window.batch()
    ('b',)
    >>> window.trained(("b",))
    0
    >>> window.publish(1)
    >>> window.offer("c"); window.arrived("c")   # played with version 1
    >>> window.batch()                           # c must wait: a may not become staler than 1
    ()
    >>> window.arrived("a")
    >>> window.batch()
    ('a',)
    >>> window.trained(("a",))
    1
    >>> window.publish(2)
    >>> window.free_slots
    1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triforge.errors import ConflictError, InputError


class Window:
    """Slots, and the version each group in flight was offered at.

    Args:
        staleness_bound: S, how many versions a trained group may lag behind; 0 is synchronous.
        groups_per_step: P, groups trained on in one step.
        version: the version that is live now.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(self, staleness_bound: int, groups_per_step: int, *, version: int = 0) -> None:
        if staleness_bound < 0 or groups_per_step < 1 or version < 0:
            raise InputError(
                f"window: given staleness_bound {staleness_bound}, groups_per_step {groups_per_step}, version {version}, "
                "expected at least 0, 1 and 0"
            )
        self._bound = staleness_bound
        self._per_step = groups_per_step
        self._version = version
        # Insertion order is the order of the offers, so the oldest come first.
        self._offered: dict[str, int] = {}
        self._arrived: set[str] = set()
        self._training: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        """The version that is live."""
        return self._version

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Groups that hold a slot, oldest offer first; those being trained on hold theirs until `publish`."""
        return tuple(self._offered)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Groups that were offered and have neither arrived nor been dropped, oldest first."""
        return tuple(group for group in self._offered if group not in self._arrived)

    @property
    def free_slots(self) -> int:
        """How many groups may be offered now."""
        return (self._bound + 1) * self._per_step - len(self._offered)

    def offer(self, group_id: str) -> None:
        """Put a group in flight at the live version.

        Raises:
            ConflictError: no slot is free, or the group is in flight already.
        """
        if group_id in self._offered:
            raise ConflictError(f"window: given {group_id!r} again, expected a group not in flight")
        if self.free_slots == 0:
            raise ConflictError(
                f"window: given {group_id!r} with {len(self._offered)} groups in flight, expected a free slot "
                "(run.staleness_bound and run.groups_per_step decide how many there are)"
            )
        self._offered[group_id] = self._version

    def arrived(self, group_id: str) -> None:
        """The group is played and judged.

        Raises:
            ConflictError: it is not in flight, or arrived before (at-least-once deliveries are filtered by the caller:
                see `waiting_for`).
        """
        self._demand_waiting(group_id)
        self._arrived.add(group_id)

    def dropped(self, group_id: str) -> None:
        """The group is lost for good; its slot is free for another offer.

        Raises:
            ConflictError: it is not in flight, or arrived.
        """
        self._demand_waiting(group_id)
        del self._offered[group_id]

    def batch(self) -> tuple[str, ...]:
        """The P groups to train on next, oldest first, or none while some have to be waited for.

        None are given either while a batch is being trained on.
        """
        if self._training:
            return ()
        ready = [group for group in self._offered if group in self._arrived]
        chosen = tuple(ready[: self._per_step])
        if len(chosen) < self._per_step or not self._leaves_room(chosen):
            return ()
        return chosen

    def trained(self, group_ids: Sequence[str]) -> int:
        """The learner takes its step on exactly the groups that `batch` gave.

        Returns:
            The staleness of the oldest of them, in versions; never above the bound.

        Raises:
            ConflictError: these are not the groups of `batch`.
        """
        expected = self.batch()
        if not group_ids or tuple(group_ids) != expected:
            raise ConflictError(
                f"window: given a step on {list(group_ids)}, expected {list(expected)}, the groups of batch()"
            )
        self._training = expected
        return self._version - min(self._offered[group] for group in expected)

    def publish(self, version: int) -> None:
        """New weights are live and the trained batch leaves its slots.

        The version is the next one, or the same when the step had nothing to learn from.

        Raises:
            ConflictError: no batch was trained, or the version skips.
        """
        if not self._training:
            raise ConflictError(
                f"window: given version {version} without a trained batch, expected trained() first"
            )
        if version not in (self._version, self._version + 1):
            raise ConflictError(
                f"window: given version {version} after {self._version}, expected {self._version + 1}"
            )
        for group in self._training:
            del self._offered[group]
            self._arrived.discard(group)
        self._training = ()
        self._version = version

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON-able values."""
        return {
            "staleness_bound": self._bound,
            "groups_per_step": self._per_step,
            "version": self._version,
            "offered": [[group, version] for group, version in self._offered.items()],
            "arrived": sorted(self._arrived),
            "training": list(self._training),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Window:
        """The window that `snapshot` described.

        Raises:
            InputError: the state is not one that a window can be in.
        """
        try:
            window = cls(
                state["staleness_bound"], state["groups_per_step"], version=state["version"]
            )
            window._offered = dict(state["offered"])
            window._arrived = set(state["arrived"])
            window._training = tuple(state["training"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"window: given a snapshot that does not parse ({error})") from None
        window._demand_possible()
        return window

    def _leaves_room(self, chosen: tuple[str, ...]) -> bool:
        """Whether the groups that stay can all still be trained on in time.

        At the next version v, groups offered at v - S or before must go in that step, those at v - S + 1 or before in
        the two steps from then on, and so on: k + 1 steps have room for (k + 1) * P of them.
        """
        stay = [version for group, version in self._offered.items() if group not in chosen]
        oldest = self._version + 1 - self._bound
        return all(
            sum(version <= oldest + k for version in stay) <= (k + 1) * self._per_step
            for k in range(-1, self._bound + 1)
        )

    def _demand_waiting(self, group_id: str) -> None:
        if group_id not in self._offered:
            raise ConflictError(f"window: given {group_id!r}, expected a group in flight")
        if group_id in self._arrived:
            raise ConflictError(
                f"window: given {group_id!r} again, expected it not to have arrived"
            )

    def _demand_possible(self) -> None:
        fits = (
            self.free_slots >= 0
            and self._arrived <= set(self._offered)
            and set(self._training) <= self._arrived
            and len(self._training) in (0, self._per_step)
            and all(0 <= self._version - v <= self._bound for v in self._offered.values())
        )
        if not fits:
            raise InputError(
                f"window: given a snapshot at version {self._version} with {len(self._offered)} groups in flight that "
                "contradicts its own bounds"
            )
