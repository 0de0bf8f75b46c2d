"""From a queue to a coroutine: what every service's Celery tasks have in common.

A task's only argument is a message as JSON. Work runs in the worker's one event loop; `queues.LoopPool` begins it there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from triforge.broker import InLoop, LoopThread, failure
from triforge.errors import StorageError, TriforgeError, UnavailableError
from triforge.telemetry import about, ids_of, tracing
from triforge.types import Message

_M = TypeVar("_M", bound=Message)
_log = logging.getLogger(__name__)

_COUNTDOWN_S = 5.0  # before a job is tried again, unless the error says when
_REFUSALS = 6  # tries again after a store has refused; the last one waits _COUNTDOWN_S * 2**5
_LOGGED = 200  # characters of an unreadable job that the log shows


def register(
    app: Any,
    name: str,
    kind: type[_M],
    work: Callable[[_M], Coroutine[Any, Any, None]],
    loop: LoopThread,
    *,
    watched: bool = True,
) -> Any:
    """Make `work` the task `name` of a Celery app; returns the task.

    A job that cannot be read is logged and dropped: it never will be readable. One that meets a service that is
    away goes back into the queue with a countdown. So does one that a store refuses (a full disk may be freed), but only
    a few times and after longer and longer pauses: a damaged file refuses for ever. Every other error of ours is final
    and logged, for the sender watches its jobs and knows what to do without one. A job that nobody watches is
    given up by no store: it comes back, after the longest of these pauses, until the store takes it. Unexpected errors
    are left to Celery, which logs them.

    Args:
        app: from `queues.celery_app`.
        name: one of the task names in `queues`.
        kind: the message that the job carries.
        work: does the job; safe to repeat.
        loop: where `work` runs.
        watched: whether the sender notices when the job is not done.
    """

    async def begin(payload: str, request: Mapping[str, Any]) -> None:
        message = _read(name, kind, payload)
        if message is None:
            return
        above = str(request.get(tracing.PARENT) or "")
        with about(**ids_of(message)), tracing.served(f"{name} job", above, "consumer"):
            try:
                await work(message)
            except (UnavailableError, StorageError):
                raise
            except TriforgeError as error:
                _give_up(name, error)

    @app.task(name=name, bind=True, max_retries=None, shared=False)  # type: ignore[untyped-decorator]
    def job(self: Any, payload: str, refusals: int = 0) -> None:
        """In a `LoopPool` called only when `begin` has failed, to deal with that."""
        try:
            if (failed := failure()) is not None:
                raise failed
            loop.run(begin(payload, vars(self.request)))
        except (UnavailableError, StorageError) as error:
            with about(**ids_of(kind.model_validate_json(payload))):
                _again(self, error, payload, refusals, watched=watched)

    job.in_loop = InLoop(loop.loop, begin)
    return job


def _read(name: str, kind: type[_M], payload: str) -> _M | None:
    try:
        return kind.model_validate_json(payload)
    except ValidationError as error:
        _log.error(
            "dropped a job of %s that is no %s: %s; it began with %r",
            name, kind.__name__, error.errors(include_url=False, include_input=False)[:3],
            str(payload)[:_LOGGED],
        )  # fmt: skip
        return None


def _again(
    task: Any,
    error: UnavailableError | StorageError,
    payload: str,
    refusals: int,
    *,
    watched: bool,
) -> None:
    """Put the job back into the queue with a countdown, unless a store has refused it too often."""
    countdown = max(error.retry_after_s or 0.0, _COUNTDOWN_S)
    if isinstance(error, StorageError):
        if refusals >= _REFUSALS and watched:
            _give_up(task.name, error)
            return
        countdown *= 2 ** min(refusals, _REFUSALS - 1)
        refusals += 1
    _log.warning("%s again in %.0f s: %s", task.name, countdown, error.detail)
    raise task.retry(args=(payload, refusals), exc=error, countdown=countdown) from error


def _give_up(name: str, error: TriforgeError) -> None:
    _log.error("gave up a job of %s: %s: %s", name, error.kind, error.detail)
