"""The engines of one role, and which of them gets a request: the least loaded that holds the active weights."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from services.policy.engines.discovery import Directory
from services.policy.engines.protocol import Engine, LostEngineError
from services.policy.metrics import Metrics
from triforge.clients.transport import UnreachableError
from triforge.errors import BusyError, PolicyError, TriforgeError, UnavailableError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

# An engine with this many requests more than the least loaded is passed over, cached prefix or not.
SPILL_OVER = 64
# After so many looks in a row at which an engine did not answer, its requests are sent elsewhere.
STRIKES = 3
_RETRIED = (PolicyError, UnavailableError)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a pool's work and of its waiting."""

    in_flight: int = 512  # samples at one engine
    waiting: int = 4096  # samples in the service
    queue_s: float = 60.0  # for a free place
    request_s: float = 600.0  # for one answer
    drain_s: float = 60.0  # for the requests of an engine that has left


@dataclass(eq=False)
class Member:
    """One engine and its state."""

    engine: Engine
    limit: int = 512  # most samples in flight
    serving: bool = False  # it has shown the active version
    reason: str = "has not answered yet"  # why it does not serve
    in_flight: int = 0  # samples that it draws for this service
    strikes: int = 0  # looks in a row at which it was not serving
    version: int | None = None  # of the weights of its last answer
    paused_s: float = 0.0  # seconds for which its requests were held for updates
    loading: bool = False  # its weights are being changed
    released: bool = False  # a learner uses its memory
    damaged: bool = False  # its weights are not whole
    failures: int = 0  # in a row, to take the active version
    again_at: float = 0.0  # when it is asked for the active version again
    unused: set[str] = field(default_factory=set)  # adapters to unload when it serves
    # Held while its weights are looked at or changed.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _calls: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Address of the engine."""
        return self.engine.url

    def takes(self, weight: int) -> bool:
        """Return whether there is room for so many samples now (0 needs none). A request larger than all the room goes alone."""
        return not weight or self.in_flight == 0 or self.in_flight + weight <= self.limit

    def abandon(self) -> None:
        """Stop waiting for answers of this engine."""
        for scope in list(self._calls):
            scope.reschedule(asyncio.get_running_loop().time())

    async def within(self, longest_s: float, work: Awaitable[_T]) -> _T:
        """Await an answer of the engine."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(longest_s) as scope:
                self._calls.add(scope)
                try:
                    return await work
                finally:
                    self._calls.discard(scope)
        except TimeoutError:
            raise UnreachableError(
                f"engine {self.url}: gave no answer for {time.monotonic() - started:.0f} s; a request may take "
                f"{longest_s:g} s (TRIFORGE_REQUEST_S), and fewer if the engine answers no probe either"
            ) from None


class Pool:
    """The engines of one role.

    A request waits `wait_s` for an engine to serve. `make` creates an engine for an address of the `directory`; without one
    the `engines` stay those of the start.
    """

    def __init__(
        self,
        engines: Sequence[Engine] = (),
        *,
        wait_s: float = 5.0,
        limits: Limits | None = None,
        directory: Directory | None = None,
        make: Callable[[str], Engine] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._wait_s = wait_s
        self._directory = directory
        self._make = make
        self.metrics = Metrics()
        self.members = [self._member(engine) for engine in engines]
        self.left: list[Member] = []  # gone from the directory, still answering
        self.waiting = 0  # samples
        self.lost = asyncio.Event()  # a request lost its engine; the weight sync looks at once
        self._leaving: set[asyncio.Task[None]] = set()
        self._line = asyncio.Lock()  # requests that wait get places in the order in which they came
        self._changed = asyncio.Event()  # a place or an engine may be free
        self._shut = False

    def _member(self, engine: Engine) -> Member:
        return Member(engine, limit=self._limits.in_flight)

    def everyone(self) -> list[Member]:
        """Return all engines that may have something in flight."""
        return [*self.members, *self.left]

    async def close(self) -> None:
        """Close all connections."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.gather(*(member.engine.close() for member in self.everyone()))

    def shut(self) -> None:
        """Give up all requests, running and waiting; every request from now on fails."""
        self._shut = True
        for member in self.everyone():
            member.abandon()
        self._changed.set()

    # ---- members ----

    async def refresh(self) -> None:
        """Follow the directory: new engines join unverified, those that have gone get no more requests.

        Requests of an engine that has been silent for several looks are sent to another one, if there is one.
        """
        for member in self.members:
            member.strikes = 0 if member.serving or member.loading else member.strikes + 1
            if member.strikes >= STRIKES and self.serving():
                member.abandon()
        urls = None if self._directory is None else await self._directory.find()
        if urls is None:
            return
        known = {member.url for member in self.members}
        for member in [m for m in self.members if m.url not in urls]:
            _log.info("engine %s has left", member.url)
            self.members.remove(member)
            self.left.append(member)
            task = asyncio.create_task(self._drain(member))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for url in urls:
            if url not in known and self._make is not None:
                _log.info("engine %s has joined", url)
                self.members.append(self._member(self._make(url)))

    async def _drain(self, member: Member) -> None:
        """Let its requests end; those that have not ended in time are tried elsewhere."""
        self.hold(member, "has left")
        await self.idle(member)
        member.abandon()
        self.left.remove(member)
        for series in (self.metrics.engine_seconds, self.metrics.engine_failures):
            series.remove_by_labels({"engine": member.url})
        await member.engine.close()

    async def idle(self, member: Member) -> None:
        """Wait until an engine has no requests, at most `drain_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain_s):
                while member.in_flight:
                    await self._change()

    def serving(self) -> list[Member]:
        """Return the engines that hold the active weight version."""
        return [member for member in self.members if member.serving]

    def in_flight(self) -> int:
        """Return how many samples engines are drawing for this service."""
        return sum(member.in_flight for member in self.everyone())

    def admit(self, member: Member) -> None:
        """Send requests to an engine that has shown the active version."""
        if not member.serving:
            _log.info("engine %s serves", member.url)
            member.serving, member.reason = True, ""
            self._changed.set()

    def exclude(self, member: Member, reason: str) -> None:
        """Send no requests to a faulty engine until it is admitted again."""
        if member.serving or member.reason != reason:
            _log.warning("engine %s is excluded: %s", member.url, reason)
        self.hold(member, reason)

    def hold(self, member: Member, reason: str) -> None:
        """Send no requests to an engine until it is admitted, as happens to good ones in every update."""
        member.serving, member.reason = False, reason

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # ---- choice ----

    def _targets(self, tried: Sequence[Member] = ()) -> list[Member]:
        return [member for member in self.serving() if member not in tried]

    def choose(
        self, affinity: str, tried: Sequence[Member] = (), *, weight: int = 0
    ) -> Member | None:
        """Return the engine for a request: the least loaded that is not `tried` and has room for `weight` samples now.

        Requests of one affinity go to one engine, whose cache then has their prefix (rendezvous hashing: when an engine comes
        or goes only its own requests move), unless its queue is long.
        """
        free = [m for m in self._targets(tried) if m.takes(weight)]
        least = min(free, key=lambda member: member.in_flight, default=None)
        if least is None or not affinity:
            return least
        key = affinity.encode()
        best = max(free, key=lambda m: hashlib.blake2b(key, key=m.url.encode()[:64]).digest())
        return least if best.in_flight > least.in_flight + SPILL_OVER else best

    def split(self, affinities: Sequence[str]) -> list[tuple[Member | None, list[int]]]:
        """Spread a batch: return engines and the positions that each of them gets."""
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

    # ---- requests ----

    async def call(
        self,
        work: Callable[[Member], Awaitable[_T]],
        *,
        affinity: str = "",
        first: Member | None = None,
        weight: int = 1,
    ) -> _T:
        """Do `work`, of `weight` samples, on the right engine; once more on another one if that fails for the engine's own reasons.

        `first` is tried first, and comes from `split`. Raises BusyError, UnavailableError (no engine serves) or PolicyError.
        """

        async def whole(member: Member) -> AsyncIterator[_T]:
            yield await work(member)

        pieces = self.stream(whole, affinity=affinity, first=first, weight=weight)
        (answer,) = [piece async for piece in pieces]
        return answer

    async def stream(
        self,
        work: Callable[[Member], AsyncIterator[_T]],
        *,
        affinity: str = "",
        first: Member | None = None,
        weight: int = 1,
    ) -> AsyncIterator[_T]:
        """Do the same for an answer that comes piece by piece. After the first piece nothing is tried again."""
        tried: list[Member] = []
        failure: TriforgeError | None = None
        while True:
            member = await self._place(affinity, tried, weight, first, failure)
            begun, started = False, time.monotonic()
            try:
                async with aclosing(work(member)) as pieces:  # type: ignore[type-var]
                    with self._counted(member, weight):
                        while True:
                            piece = await member.within(self._limits.request_s, anext(pieces))
                            begun = True
                            yield piece
            except StopAsyncIteration:
                self.metrics.engine_seconds.labels(member.url).observe(time.monotonic() - started)
                return
            except _RETRIED as error:
                failure = self._failed(member, error)
                if begun or tried:
                    raise failure from error
            tried.append(member)

    @contextlib.contextmanager
    def _counted(self, member: Member, weight: int) -> Iterator[None]:
        member.in_flight += weight
        try:
            yield
        finally:
            member.in_flight -= weight
            self._changed.set()

    def _failed(self, member: Member, error: TriforgeError) -> TriforgeError:
        """Return the error for the caller if no other engine can help; have the weight sync look at a lost engine."""
        self.metrics.engine_failures.labels(member.url, error.kind).inc()
        if isinstance(error, UnreachableError | LostEngineError):
            self.exclude(member, error.detail)
            self.lost.set()
            return error
        if isinstance(error, UnavailableError):
            return BusyError(error.detail, retry_after_s=error.retry_after_s)
        return error

    async def _place(
        self,
        affinity: str,
        tried: Sequence[Member],
        weight: int,
        first: Member | None,
        failure: TriforgeError | None,
    ) -> Member:
        """Return an engine with room, now or after a wait."""
        self._raise_if_shut()
        if not self._targets(tried):
            if failure is not None:
                raise failure
            await self._some_engine()
        if not self._line.locked():
            if first is not None and not tried and first.serving and first.takes(weight):
                return first
            member = self.choose(affinity, tried, weight=weight)
            if member is not None:
                return member
        limit = self._limits.waiting
        if self.waiting and self.waiting + weight > limit:
            self.metrics.turned_away.inc()
            raise BusyError(
                f"{self.waiting} samples wait for an engine, which is as many as may (TRIFORGE_MAX_WAITING={limit}); "
                "come back later, or add engines"
            )
        self.waiting += weight
        try:
            async with asyncio.timeout(self._limits.queue_s), self._line:
                while (member := self.choose(affinity, tried, weight=weight)) is None:
                    await self._change()
                    self._raise_if_shut()
                return member
        except TimeoutError:
            self.metrics.turned_away.inc()
            raise BusyError(
                f"no engine had a free place within {self._limits.queue_s:g} s (TRIFORGE_QUEUE_S)"
            ) from None
        finally:
            self.waiting -= weight

    def _raise_if_shut(self) -> None:
        if self._shut:
            raise UnavailableError(
                "the service is shutting down; ask another one or come back later"
            )

    async def _some_engine(self) -> None:
        """Wait `wait_s` seconds for an engine to serve."""
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._targets():
                    await self._change()
        except TimeoutError:
            raise self.none_serves() from None

    def none_serves(self) -> UnavailableError:
        """Return the error that says why no engine serves."""
        if not self.members:
            return UnavailableError("no engine is known yet: TRIFORGE_ENGINES has given no address")
        reasons = tuple(f"engine {m.url}: {m.reason}" for m in self.members)
        return UnavailableError(
            f"none of {len(self.members)} engines serves now: {'; '.join(reasons)}",
            problems=reasons,
        )
