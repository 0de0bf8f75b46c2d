"""The one retry mechanism: pauses, deadlines, and which errors are tried again."""

from __future__ import annotations

import pytest

from triforge.errors import BusyError, InputError, PolicyError, UnavailableError
from triforge.retry import Attempts, RetryPolicy, is_retryable, retry, waiting


class Failing:
    """Raises the errors in turn, then answers with the number of calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def away(retry_after_s: float | None = None) -> UnavailableError:
    return UnavailableError("away", retry_after_s=retry_after_s)


QUICK = RetryPolicy(first_s=0.001, deadline_s=5.0)


def test_pauses_grow_up_to_the_longest() -> None:
    policy = RetryPolicy(first_s=0.1, factor=4, longest_s=5, jitter=0)
    assert [policy.pause_s(n) for n in (1, 2, 3, 4, 1000)] == pytest.approx([0.1, 0.4, 1.6, 5, 5])


def test_a_pause_is_no_shorter_than_retry_after() -> None:
    policy = RetryPolicy(first_s=0.1, longest_s=5, jitter=0)
    assert policy.pause_s(1, away(7.0)) == 7.0
    assert policy.pause_s(1, away(0.0)) == 0.1


def test_jitter_only_lengthens_a_pause() -> None:
    pauses = {RetryPolicy(first_s=1.0, jitter=0.5).pause_s(1) for _ in range(50)}
    assert min(pauses) >= 1.0
    assert max(pauses) <= 1.5
    assert len(pauses) > 1


async def test_what_passes_is_tried_until_it_does() -> None:
    assert await retry(Failing(away(), away()), QUICK) == 3


async def test_a_final_error_is_raised_at_once() -> None:
    call = Failing(InputError("no such field"))
    with pytest.raises(InputError, match="no such field"):
        await retry(call, QUICK)
    assert call.calls == 1


async def test_no_try_begins_after_the_deadline() -> None:
    call = Failing(away(2.0))
    with pytest.raises(UnavailableError):
        await retry(call, waiting(1.0))
    assert call.calls == 1


async def test_a_busy_service_is_waited_for_longer() -> None:
    policy = RetryPolicy(first_s=0.01, deadline_s=0.0, busy_s=5.0)
    assert await retry(Failing(BusyError("full", retry_after_s=None)), policy) == 2
    with pytest.raises(UnavailableError):
        await retry(Failing(away()), policy)


async def test_retries_are_counted() -> None:
    policy = RetryPolicy(first_s=0.001, retries=2, retry_on=is_retryable)
    assert await retry(Failing(PolicyError("a"), ValueError("b")), policy) == 3
    with pytest.raises(PolicyError, match="c"):
        await retry(Failing(PolicyError("a"), PolicyError("b"), PolicyError("c")), policy)


async def test_a_success_begins_anew() -> None:
    attempts = Attempts(RetryPolicy(first_s=0.001, retries=1))
    await attempts.failed(away())
    attempts.succeeded()
    await attempts.failed(away())
    with pytest.raises(UnavailableError):
        await attempts.failed(away())
