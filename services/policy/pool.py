"""Which engine gets a request: prefix affinity, bounded numbers in flight, and another try on another engine."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from services.policy.discovery import Directory
from services.policy.member import LostEngineError, Member
from services.policy.sglang import SGLangEngine
from services.policy.waiting import WaitingService
from triforge.clients.transport import UnreachableError
from triforge.errors import BusyError, PolicyError, TriforgeError, UnavailableError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

# An engine with this many requests more than the idlest is passed over, prefix or not.
SPILL_OVER = 64
# So many looks in a row at which an engine did not answer, and whoever waits for it is sent elsewhere.
STRIKES = 3
_RETRIED = (PolicyError, UnavailableError)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a pool takes on.

    Attributes:
        in_flight: most samples in flight at one engine; further ones wait.
        waiting: most samples that wait in the service; further ones are turned away.
        queue_s: longest wait for a free place.
        request_s: longest wait for one answer of an engine.
        drain_s: how long what runs on an engine that has left may still take.
    """

    in_flight: int = 512
    waiting: int = 4096
    queue_s: float = 60.0
    request_s: float = 600.0
    drain_s: float = 60.0


class Pool:
    """The engines of one role.

    Args:
        engines: those at the start, reachable or not.
        wait_s: how long a request waits for an engine to serve before it fails.
        limits: how much is taken on.
        directory: where engines come from; None keeps those of the start.
        API: a router that spreads requests over the engines itself.
        make: an engine for an address that the directory has found.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        engines: Sequence[SGLangEngine] = (),
        *,
        wait_s: float = 5.0,
        limits: Limits | None = None,
        directory: Directory | None = None,
        api: SGLangEngine | None = None,
        make: Callable[[str], SGLangEngine] = SGLangEngine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._wait_s = wait_s
        self._directory = directory
        self._make = make
        self._changed = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
        self._mean_s = 1.0  # of one request, for the sentence to who is turned away
        self.line = WaitingService(limit=self._limits.waiting, longest_s=self._limits.queue_s)
        self.members = [self._member(engine) for engine in engines]
        self.left: list[Member] = []  # gone from the directory, still answering
        self.api = None if api is None else self._member(api)
        if self.api is not None:
            self.api.serving = True  # what counts is whether those behind it serve
        self._shut = False
        self.lost = asyncio.Event()  # a request lost its engine; the fence looks at once

    def _member(self, engine: SGLangEngine) -> Member:
        return Member(
            engine,
            limit=self._limits.in_flight,
            request_s=self._limits.request_s,
            clock=self._clock,
        )

    async def close(self) -> None:
        """Close all connections."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        apis = [] if self.api is None else [self.api]
        everyone = [*self.members, *self.left, *apis]
        await asyncio.gather(*(member.engine.close() for member in everyone))

    def shut(self) -> None:
        """Give up what runs and what waits; every request from now on fails."""
        self._shut = True
        apis = [] if self.api is None else [self.api]
        for member in [*self.members, *self.left, *apis]:
            member.abandon()
        self.line.wake()

    def _raise_if_shut(self) -> None:
        if self._shut:
            raise UnavailableError(
                "the service is shutting down; ask another one or come back later"
            )

    # ---- who is there ---------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Before each look of the fence: who is there, and who has been silent for too long.

        Newcomers join, unproven. Who has gone gets no more requests. An engine that was found wanting several times in a
        row loses what it was asked, too, if there is another one to ask.
        """
        for member in self.members:
            member.strikes = 0 if member.serving else member.strikes + 1
            if member.strikes >= STRIKES and self.serving():
                member.abandon()
        found = None if self._directory is None else await self._directory.find()
        if found is not None:
            self._follow(found)

    def _follow(self, found: Sequence[str]) -> None:
        known = {member.engine.url for member in self.members}
        for member in [m for m in self.members if m.engine.url not in found]:
            _log.info("engine %s has left", member.engine.url)
            self.members.remove(member)
            self.left.append(member)
            task = asyncio.create_task(self._see_off(member))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for url in found:
            if url not in known:
                _log.info("engine %s has joined", url)
                self.members.append(self._member(self._make(url)))
        if self.api is not None:
            self.api.limit = self._limits.in_flight * max(1, len(self.members))

    async def _see_off(self, member: Member) -> None:
        """Let what runs on it end; what has not ended then is tried elsewhere."""
        member.serving, member.reason = False, "has left"
        await member.drained(self._limits.drain_s)
        self.left.remove(member)
        await member.engine.close()

    def serving(self) -> list[Member]:
        """Engines that hold the live weight version."""
        return [member for member in self.members if member.serving]

    def in_flight(self) -> int:
        """Samples that engines are drawing for this service."""
        apis = [] if self.api is None else [self.api]
        return sum(member.in_flight for member in [*self.members, *self.left, *apis])

    def admit(self, member: Member) -> None:
        """The engine has proven the live version."""
        if not member.serving:
            _log.info("engine %s serves", member.engine.url)
            member.serving, member.reason = True, ""
            self._changed.set()
            self.line.wake()

    def fence_off(self, member: Member, reason: str) -> None:
        """The engine gets no requests until it is admitted again."""
        if member.serving or member.reason != reason:
            _log.warning("engine %s is fenced off: %s", member.engine.url, reason)
        member.serving, member.reason = False, reason

    # ---- who gets a request ---------------------------------------------------------------------------------------

    def _targets(self) -> list[Member]:
        """Whom requests may be sent to. A router only while all behind it have proven themselves."""
        api = self.api
        proven = bool(self.members) and all(member.serving for member in self.members)
        if api is not None and proven and api.breaker.allows:
            return [api]
        return [member for member in self.members if member.ready]

    def choose(
        self, affinity: str, tried: Sequence[Member] = (), *, weight: int = 0
    ) -> Member | None:
        """The engine for a request, or None if none is left.

        Requests of one affinity go to one engine, whose cache then knows their prefix (rendezvous hashing: when an
        engine comes or goes only its own requests move). Without affinity, or where the queue is long, the idlest.

        Args:
            affinity: what the requests with the same prefix have in common.
            tried: engines not to choose.
            weight: only engines that have room for so many samples now; 0 asks for no room.
        """
        free = [member for member in self._targets() if member not in tried]
        if not free and tried and self.api in tried:
            free = [member for member in self.members if member.ready and member not in tried]
        if weight:
            free = [member for member in free if member.takes(weight)]
        if len(free) <= 1 or not affinity:
            return min(free, key=lambda member: member.in_flight, default=None)
        wanted = affinity.encode()
        best = max(free, key=lambda m: hashlib.blake2b(wanted, key=m.key[:64]).digest())
        idlest = min(free, key=lambda member: member.in_flight)
        return idlest if best.in_flight > idlest.in_flight + SPILL_OVER else best

    def split(self, affinities: Sequence[str]) -> list[tuple[Member | None, list[int]]]:
        """Spread a batch: engines and the positions each of them gets."""
        if len(affinities) == 1:
            return [(self.choose(affinities[0]), [0])]
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
            BusyError: all that serve are busy, or too many wait for them.
            UnavailableError: no engine serves.
            PolicyError: every engine failed at it.
        """
        tried: list[Member] = []
        failure: TriforgeError | None = None
        while True:
            member = await self._next(affinity, tried, weight, first, failure)
            started = self._clock()
            try:
                found = await member.ask(work, weight=weight)
            except _RETRIED as error:
                failure = self._classify(member, error)
                if member is self.api and isinstance(failure, BusyError):
                    raise failure from error  # those behind it have said so
            else:
                self._mean_s += 0.05 * (self._clock() - started - self._mean_s)
                return found
            finally:
                self.line.wake()
            tried.append(member)

    async def stream(
        self, work: Callable[[SGLangEngine], AsyncIterator[_T]], *, affinity: str = ""
    ) -> AsyncIterator[_T]:
        """As `call`, for answers that come piece by piece. After the first piece nothing is tried again.

        Raises:
            As `call`; also after pieces have come.
        """
        tried: list[Member] = []
        failure: TriforgeError | None = None
        while True:
            member = await self._next(affinity, tried, 1, None, failure)
            begun = False
            member.take(1)
            try:
                async with aclosing(work(member.engine)) as pieces:  # type: ignore[type-var]
                    while True:
                        piece = await member.ask(lambda _: anext(pieces), weight=0, timed=False)
                        begun = True
                        yield piece
            except StopAsyncIteration:
                return
            except _RETRIED as error:
                failure = self._classify(member, error)
                if begun:
                    raise failure from error
            finally:
                member.leave(1)
                self.line.wake()
            tried.append(member)

    def _classify(self, member: Member, error: TriforgeError) -> TriforgeError:
        """What the caller is told if no other engine can help; and whether the fence must look."""
        if isinstance(error, UnreachableError | LostEngineError):
            if member is not self.api:
                self.fence_off(member, error.detail)
            self.lost.set()
            return error
        if isinstance(error, UnavailableError):
            return BusyError(error.detail, retry_after_s=error.retry_after_s)
        return error

    async def _next(
        self,
        affinity: str,
        tried: Sequence[Member],
        weight: int,
        first: Member | None,
        failure: TriforgeError | None,
    ) -> Member:
        """An engine with room, now or after a wait."""
        self._raise_if_shut()
        if not self.line or tried:
            if first is not None and not tried and first.ready and first.takes(weight):
                return first
            member = self.choose(affinity, tried, weight=weight)
            if member is not None:
                return member
        if self.choose(affinity, tried) is None:
            if failure is not None:
                raise failure
            await self._someone()
        self._raise_if_busy(tried, failure)
        busy_s = self._mean_s * (1 + self.line.waiting / max(1, self.in_flight()))

        def take() -> Member | None:
            self._raise_if_shut()
            return self.choose(affinity, tried, weight=weight)

        return await self.line.wait(take, weight, busy_s)

    def _raise_if_busy(self, tried: Sequence[Member], failure: TriforgeError | None) -> None:
        """Engines that have all said they are busy are not queued for: the caller slows down."""
        left = [member for member in self._targets() if member not in tried]
        if left and all(member.busy_s > 0 for member in left):
            raise failure or BusyError(
                f"all of {len(left)} engines say that they are busy",
                retry_after_s=min(member.busy_s for member in left),
            )

    async def _someone(self) -> None:
        """Wait a little for an engine to come (back).

        Raises:
            UnavailableError: none came.
        """
        deadline = self._clock() + self._wait_s
        while not self._targets():
            left = deadline - self._clock()
            if left <= 0:
                raise self.nobody()
            self._changed.clear()
            pauses = [m.breaker.wait_s for m in self.members if m.serving]
            try:
                async with asyncio.timeout(min([left, *(p + 0.01 for p in pauses)])):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def nobody(self) -> UnavailableError:
        """The error that says why no engine serves."""
        if not self.members:
            return UnavailableError("no engine is known yet: TRIFORGE_ENGINES has given no address")
        reasons = tuple(f"engine {m.engine.url}: {_reason(m)}" for m in self.members)
        return UnavailableError(
            f"none of {len(self.members)} engines serves now: {'; '.join(reasons)}",
            problems=reasons,
        )


def _reason(member: Member) -> str:
    if member.serving and not member.breaker.allows:
        return f"failed again and again, tried again in {member.breaker.wait_s:.0f} s"
    return member.reason
