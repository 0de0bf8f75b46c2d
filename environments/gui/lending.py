"""Leases of browsers or machines, which the episodes of a process share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from triforge.errors import EnvError

WAIT_S: Final = 3600.0
T = TypeVar("T")

_CHANGED: Final = threading.Condition()
_TAKEN: Final[set[str]] = set()


class Lease(Generic[T]):
    """The use of one of several places by one episode, from `begin` to `end`, in any threads.

    Args:
        what: family and thing, for error messages, such as "osworld: machine".
        places: names; one that is taken is taken for the whole process.
        start: makes the thing at a place.
        free: takes it back, with whether it is sound: not when a call to it raised or still runs.
    """

    def __init__(
        self,
        what: str,
        places: Sequence[str],
        start: Callable[[str], T],
        free: Callable[[str, T, bool], None],
    ) -> None:
        self._family, _, self._what = what.partition(": ")
        self._places = places
        self._start = start
        self._free = free
        self._ended = False
        self._held: tuple[str, T] | None = None

    def begin(self) -> T:
        """Return the thing at a free place; wait while all are taken."""
        place = self._take()
        try:
            held = self._start(place)
        except BaseException:
            self._give_back(place)
            raise
        with _CHANGED:
            self._held = place, held
        if self._ended:
            self.end(sound=True)
            raise EnvError(f"{self._family}: the episode was closed while its {self._what} started")
        return held

    def end(self, *, sound: bool) -> None:
        """Give it back, or stop waiting for it. Idempotent."""
        with _CHANGED:
            self._ended = True
            held, self._held = self._held, None
            _CHANGED.notify_all()
        if held is not None:
            try:
                self._free(*held, sound)
            finally:
                self._give_back(held[0])

    def _take(self) -> str:
        def free() -> list[str]:
            return [place for place in self._places if place not in _TAKEN]

        with _CHANGED:
            _CHANGED.wait_for(lambda: self._ended or free(), WAIT_S)
            if self._ended:
                raise EnvError(
                    f"{self._family}: the episode was closed while it waited for a {self._what}"
                )
            if not (places := free()):
                raise EnvError(
                    f"{self._family}: no {self._what} became free within {WAIT_S:g} s; there are "
                    f"{len(self._places)} for this worker"
                )
            _TAKEN.add(places[0])
            return places[0]

    def _give_back(self, place: str) -> None:
        with _CHANGED:
            _TAKEN.discard(place)
            _CHANGED.notify_all()
