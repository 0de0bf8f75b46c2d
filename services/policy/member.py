"""One engine of a pool and what is known about it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from services.policy.breaker import Breaker
from triforge.clients.transport import UnreachableError
from triforge.errors import PolicyError, TriforgeError, UnavailableError

if TYPE_CHECKING:
    from services.policy.sglang import SGLangEngine

_T = TypeVar("_T")
_AT_ONCE_S = 2.0  # for an engine that does not serve to say what it holds
LONGEST_BUSY_S = 30.0  # an engine that says 429 is asked again after this long at the latest


class LostEngineError(PolicyError):
    """The engine cannot be trusted with requests now: the fence has to look at it."""


class Durations:
    """How many requests took up to how long."""

    BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(eq=False)
class Member:
    """One engine.

    `serving` is set by the fence once the engine has proven the live weight version, and cleared when it is lost.

    Attributes:
        engine: how it is spoken to.
        limit: most samples in flight.
        request_s: longest wait for one answer.
        clock: seconds that only grow.
        reason: why it does not serve.
        strikes: looks in a row at which the fence found it wanting.
        failures: failed requests by kind.
        seconds: how long requests took.
    """

    engine: SGLangEngine
    limit: int = 512
    request_s: float = 600.0
    clock: Callable[[], float] = time.monotonic
    serving: bool = False
    in_flight: int = 0
    reason: str = "has not answered yet"
    strikes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    seconds: Durations = field(default_factory=Durations)
    breaker: Breaker = field(init=False)
    key: bytes = field(init=False)
    _busy_until: float = 0.0
    _calls: set[asyncio.Timeout] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.key = self.engine.url.encode()
        self.breaker = Breaker(clock=self.clock)

    @property
    def busy_s(self) -> float:
        """Seconds until the engine wants to be asked again; 0 if it may be asked now."""
        return max(0.0, self._busy_until - self.clock()) if self._busy_until else 0.0

    @property
    def ready(self) -> bool:
        """Whether requests may be sent, service or not."""
        return self.serving and self.breaker.allows

    def takes(self, weight: int) -> bool:
        """Whether there is room for so many samples now. A request larger than all the service there is goes alone."""
        service = self.in_flight == 0 or self.in_flight + weight <= self.limit
        return service and self.busy_s == 0

    @property
    def state(self) -> str:
        """In one word, for the metrics."""
        return self.breaker.state if self.serving else "fenced_off"

    def take(self, weight: int) -> None:
        """So many samples are in flight."""
        self.in_flight += weight
        self._idle.clear()

    def leave(self, weight: int) -> None:
        """So many are no longer."""
        self.in_flight -= weight
        if self.in_flight == 0:
            self._idle.set()

    async def drained(self, longest_s: float) -> None:
        """Wait until nothing is in flight, but not for ever; what is left then is given up."""
        if self.in_flight:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest_s):
                    await self._idle.wait()
        self.abandon()

    def abandon(self) -> None:
        """Whoever waits for an answer of this engine stops waiting."""
        for scope in list(self._calls):
            scope.reschedule(asyncio.get_running_loop().time())

    async def ask(
        self, work: Callable[[SGLangEngine], Awaitable[_T]], *, weight: int = 1, timed: bool = True
    ) -> _T:
        """Do `work` with the engine, count it, and hold what comes of it for or against the engine.

        Args:
            work: what to do.
            weight: how many samples it stands for.
            timed: whether its duration is one of a whole request.

        Raises:
            UnreachableError: it took longer than `request_s`, or the engine was given up meanwhile.
            TriforgeError: whatever `work` raises.
        """
        started = self.clock()
        self.take(weight)
        self.breaker.began()
        try:
            async with asyncio.timeout(self.request_s) as scope:
                self._calls.add(scope)
                try:
                    found = await work(self.engine)
                finally:
                    self._calls.discard(scope)
        except TimeoutError:
            silent = UnreachableError(
                f"engine {self.engine.url}: gave no answer for {self.clock() - started:.0f} s; a request may take "
                f"{self.request_s:g} s (TRIFORGE_REQUEST_S), and fewer if the engine answers no probe either"
            )
            self._hold_against(silent)
            raise silent from None
        except BaseException as error:
            self._hold_against(error)
            raise
        finally:
            self.leave(weight)
        self.breaker.succeeded()
        if timed:
            self.seconds.add(self.clock() - started)
        return found

    async def answers(self) -> bool:
        """Whether it serves, or says at once what it holds."""
        if self.serving:
            return True
        try:
            async with asyncio.timeout(_AT_ONCE_S):
                await self.engine.info(paused=True)
        except (TriforgeError, TimeoutError):
            return False
        return True

    def _hold_against(self, error: BaseException) -> None:
        if isinstance(error, PolicyError | UnreachableError):
            self.failures[error.kind] += 1
            self.breaker.failed()
        elif isinstance(error, UnavailableError):
            self.failures["busy"] += 1
            self._busy_until = self.clock() + min(error.retry_after_s or 1.0, LONGEST_BUSY_S)
            self.breaker.given_up()
        elif isinstance(error, Exception):  # a refusal is an answer, too
            self.breaker.succeeded()
        else:
            self.breaker.given_up()
