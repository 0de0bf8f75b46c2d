"""Which engine gets a request: prefix affinity, in-flight counts, and another try on another engine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from services.policy.sglang import SGLangEngine
from triforge.clients.transport import UnreachableError
from triforge.errors import PolicyError, UnavailableError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

# An engine with this many requests more than the idlest is passed over, prefix or not.
SPILL_OVER = 64


@dataclass(eq=False)
class Member:
    """One engine and what is known about it.

    `serving` is set by the fence once the engine has proven the live weight version, and cleared when it is lost.
    """

    engine: SGLangEngine
    serving: bool = False
    in_flight: int = 0
    reason: str = "has not answered yet"
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.engine.url.encode()


class Pool:
    """The engines of one role.

    Args:
        engines: all of them, reachable or not.
        wait_s: how long a request waits for an engine to serve before it fails.
    """

    def __init__(self, engines: Sequence[SGLangEngine], *, wait_s: float = 5.0) -> None:
        self.members = [Member(engine) for engine in engines]
        self._wait_s = wait_s
        self._changed = asyncio.Event()
        self.lost = asyncio.Event()  # a request lost its engine; the fence looks at once

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(member.engine.close() for member in self.members))

    def serving(self) -> list[Member]:
        """Engines that may be given requests now."""
        return [member for member in self.members if member.serving]

    def admit(self, member: Member) -> None:
        """The engine has proven the live version."""
        if not member.serving:
            _log.info("engine %s serves", member.engine.url)
            member.serving, member.reason = True, ""
            self._changed.set()

    def fence_off(self, member: Member, reason: str) -> None:
        """The engine gets no requests until it is admitted again."""
        if member.serving or member.reason != reason:
            _log.warning("engine %s is fenced off: %s", member.engine.url, reason)
        member.serving, member.reason = False, reason

    def choose(self, affinity: str, tried: Sequence[Member] = ()) -> Member | None:
        """The engine for a request, or None if none is left.

        Requests of one affinity go to one engine, whose cache then knows their prefix (rendezvous hashing: when an
        engine comes or goes only its own requests move). Without affinity, or where the queue is long, the idlest.
        """
        free = [member for member in self.members if member.serving and member not in tried]
        if len(free) <= 1 or not affinity:
            return min(free, key=lambda member: member.in_flight, default=None)
        wanted = affinity.encode()
        best = max(free, key=lambda m: hashlib.blake2b(wanted, key=m.key[:64]).digest())
        idlest = min(free, key=lambda member: member.in_flight)
        return idlest if best.in_flight > idlest.in_flight + SPILL_OVER else best

    def split(self, affinities: Sequence[str]) -> list[tuple[Member | None, list[int]]]:
        """Spread a batch: engines and the positions each of them gets."""
        shares: dict[Member | None, list[int]] = {}
        for position, affinity in enumerate(affinities):
            member = self.choose(affinity)
            if member is not None:
                member.in_flight += 1  # so that the next choice sees it
            shares.setdefault(member, []).append(position)
        for member, positions in shares.items():
            if member is not None:
                member.in_flight -= len(positions)
        return list(shares.items())

    async def call(
        self,
        work: Callable[[SGLangEngine], Awaitable[_T]],
        *,
        affinity: str = "",
        first: Member | None = None,
        weight: int = 1,
    ) -> _T:
        """Do `work` on the right engine; on another one if that fails for the engine's own reasons.

        Args:
            work: what to do; safe to repeat.
            affinity: requests that share it share an engine.
            first: the engine to try first, from `split`.
            weight: how many requests it stands for.

        Raises:
            UnavailableError: no engine serves, or all that do are overloaded.
            PolicyError: every engine failed at it.
        """
        tried: list[Member] = []
        failure: PolicyError | UnavailableError | None = None
        while True:
            member = first if first and not tried else self.choose(affinity, tried)
            if member is None and failure is None:
                member = await self._wait(affinity)
            if member is None:
                raise failure or self.nobody()
            member.in_flight += weight
            try:
                return await work(member.engine)
            except UnreachableError as error:
                self.fence_off(member, error.detail)
                self.lost.set()
                failure = error
            except (PolicyError, UnavailableError) as error:
                failure = error
            finally:
                member.in_flight -= weight
            tried.append(member)

    async def _wait(self, affinity: str) -> Member | None:
        """Wait a little for an engine to come (back)."""
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    self._changed.clear()
                    member = self.choose(affinity)
                    if member is not None:
                        return member
                    await self._changed.wait()
        except TimeoutError:
            return None

    def nobody(self) -> UnavailableError:
        """The error that says why no engine serves."""
        reasons = tuple(f"engine {m.engine.url}: {m.reason}" for m in self.members)
        return UnavailableError(
            f"none of {len(self.members)} engines serves now: {'; '.join(reasons)}",
            problems=reasons,
        )
