"""When and how often something is tried again: exponential back-off with jitter, a deadline, and which errors may pass.

The only retry mechanism. HTTP clients, rollouts, judging, Celery jobs and loops that outlive an outage take their pauses here.
Only for what may be repeated: reads, sampling, writes that are first writer wins.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from triforge.errors import BusyError, TriforgeError, UnavailableError

_T = TypeVar("_T")


def is_unavailable(error: Exception) -> bool:
    """A service that is away or busy."""
    return isinstance(error, UnavailableError)


def is_retryable(error: Exception) -> bool:
    """Every error that does not say that it is final."""
    return not isinstance(error, TriforgeError) or error.retryable


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """The numbers of a retry.

    Attributes:
        first_s: pause after the first failure; each further one is `factor` times as long, at most `longest_s`.
        jitter: up to this share of a pause is added at random, so that many clients do not return together.
        deadline_s: no try begins later than this after the first; counted again after a success.
        busy_s: the deadline for a service that lives but is busy (`BusyError`), where it is longer.
        retries: tries after the first, at most.
        retry_on: which errors are tried again; the others are raised at once.
    """

    first_s: float = 0.1
    factor: float = 2.0
    longest_s: float = 5.0
    jitter: float = 0.1
    deadline_s: float = math.inf
    busy_s: float = 0.0
    retries: float = math.inf
    retry_on: Callable[[Exception], bool] = is_unavailable

    def pause_s(self, failures: int, error: Exception | None = None) -> float:
        """Seconds to wait after so many failures in a row; no less than the error's Retry-After."""
        pause = min(self.first_s * self.factor ** min(max(failures, 1) - 1, 64), self.longest_s)
        if isinstance(error, TriforgeError) and error.retry_after_s is not None:
            pause = max(pause, error.retry_after_s)
        return pause * (1.0 + self.jitter * random.random())  # noqa: S311 (no secret)


class Attempts:
    """Tries of one thing: counts failures in a row and waits between them. For loops; a single call takes `retry`."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.succeeded()

    def succeeded(self) -> None:
        """Begin anew: the next failure is the first."""
        self.failures = 0
        self._began = time.monotonic()

    async def failed(self, error: Exception) -> None:
        """Wait until the next try.

        Raises:
            Exception: `error` itself, when it is final or there is no time for another try.
        """
        policy = self._policy
        self.failures += 1
        if not policy.retry_on(error) or self.failures > policy.retries:
            raise error
        limit = policy.deadline_s
        if isinstance(error, BusyError):
            limit = max(limit, policy.busy_s)
        pause = policy.pause_s(self.failures, error)
        if time.monotonic() + pause > self._began + limit:
            raise error
        await asyncio.sleep(pause)


async def retry(call: Callable[[], Awaitable[_T]], policy: RetryPolicy) -> _T:
    """Await `call` until it succeeds; raises its last error when it is final or the policy gives up."""
    attempts = Attempts(policy)
    while True:
        try:
            return await call()
        except Exception as error:  # noqa: BLE001 (raised by `failed` unless it is tried again)
            await attempts.failed(error)


def waiting(deadline_s: float) -> RetryPolicy:
    """Wait for a service that is away, for at most so long."""
    return RetryPolicy(deadline_s=deadline_s)


__all__ = ["Attempts", "RetryPolicy", "is_retryable", "is_unavailable", "retry", "waiting"]
