"""Which adapter requests are sent with, which adapters are still in use, and the versions of what comes back.

An engine with an adapter says the version of its base for every token. A request's tokens are of the version of the adapter
that it was sent with, as long as the base below it stayed what it was.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from triforge.types import VersionSpan


class MixedError(Exception):
    """The base changed under a request: what came back is of no version, and has to be asked for again."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """A version that is an adapter: its name at the engines, and the version that they say of the base below it."""

    version: int
    name: str
    base: int


def adapter_name(version: int) -> str:
    """What engines call the adapter of a version."""
    return f"v{version:06d}"


class Adapters:
    """The adapters of a service.

    Attributes:
        live: what requests are sent with from now on; None for none.
    """

    def __init__(self) -> None:
        self.live: Adapted | None = None
        self._retired: set[str] = set()
        self._used: Counter[str] = Counter()
        self._bases: set[int] = set()

    def below(self, version: int) -> None:
        """The engines get the base of an adapter under this number, which never serves alone."""
        self._bases.add(version)

    def move(self, live: Adapted | None) -> None:
        """Another version is live. The adapter before is unloaded when nobody uses it any more."""
        if self.live is not None and self.live != live:
            self._retired.add(self.live.name)
        if live is not None:
            self._retired.discard(live.name)
        self.live = live

    def retire(self, names: Iterable[str]) -> None:
        """Adapters that engines hold from before are not needed."""
        self._retired.update(names)

    def unused(self) -> list[str]:
        """Adapters to unload now; named once."""
        found = sorted(name for name in self._retired if not self._used[name])
        self._retired.difference_update(found)
        for name in found:
            del self._used[name]
        return found

    @contextlib.contextmanager
    def use(self) -> Iterator[Adapted | None]:
        """Inside, the adapter that is live now stays loaded."""
        live = self.live
        if live is None:
            yield None
            return
        self._used[live.name] += 1
        try:
            yield live
        finally:
            self._used[live.name] -= 1

    def label(
        self, versions: Sequence[VersionSpan], used: Adapted | None
    ) -> tuple[VersionSpan, ...]:
        """The versions of an answer's tokens.

        Args:
            versions: as the engine says.
            used: the adapter that the request was sent with.

        Raises:
            MixedError: the base changed meanwhile.
        """
        if used is None:
            if self._bases and any(span.version in self._bases for span in versions):
                raise MixedError
            return tuple(versions)
        if any(span.version != used.base for span in versions):
            raise MixedError
        if not versions:
            return ()
        return (VersionSpan(version=used.version, start=0, end=versions[-1].end),)
