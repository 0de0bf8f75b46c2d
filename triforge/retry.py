"""Retries: exponential back-off with jitter, a deadline, and a choice of errors.

The only retry mechanism, for HTTP clients, rollouts, judging, Celery jobs and loops that outlive an outage. Only for work that
may be repeated: reads, sampling, writes that are first writer wins.
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
    """Return whether a service is away or busy."""
    return isinstance(error, UnavailableError)


def is_retryable(error: Exception) -> bool:
    """Return whether an error may pass; only errors of ours can be final."""
    return not isinstance(error, TriforgeError) or error.retryable


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """The parameters of retries.

    Attributes:
        first_s: pause after the first failure; each further one is `factor` times as long, at most `longest_s`.
        jitter: random addition to a pause, up to this share of it, so that many clients do not return together.
        deadline_s: latest start of a try after the first one; a success restarts the count.
        busy_s: deadline for a service that is busy (`BusyError`), where it is longer.
        retries: most tries after the first.
        retry_on: the errors after which to try again; others are raised at once.
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
        """Return the pause after so many failures in a row, at least the error's Retry-After."""
        pause = min(self.first_s * self.factor ** min(max(failures, 1) - 1, 64), self.longest_s)
        if isinstance(error, TriforgeError) and error.retry_after_s is not None:
            pause = max(pause, error.retry_after_s)
        return pause * (1.0 + self.jitter * random.random())  # noqa: S311 (no secret)


class Attempts:
    """Failures in a row of a loop, with the pauses between them; a single call takes `retry`."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.succeeded()

    def succeeded(self) -> None:
        """Restart the count: the next failure is the first."""
        self.failures = 0
        self._began = time.monotonic()

    async def failed(self, error: Exception) -> None:
        """Wait until the next try.

        Raises:
            Exception: `error` itself, when it is final or no time is left for another try.
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
    """Await `call` until it succeeds; raise its last error when the policy gives up."""
    attempts = Attempts(policy)
    while True:
        try:
            return await call()
        except Exception as error:  # noqa: BLE001 (`failed` raises it unless it is tried again)
            await attempts.failed(error)


def waiting(deadline_s: float) -> RetryPolicy:
    """Return the policy that waits so long for a service that is away."""
    return RetryPolicy(deadline_s=deadline_s)
