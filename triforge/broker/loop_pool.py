"""A Celery pool whose jobs are coroutines: all run in one event loop, and none occupies a thread while it waits.

Celery takes jobs from the queue, counts and acknowledges them as ever; it hears of a job's end from the loop. A job
that has failed is given to a thread, in which Celery runs the task as in any pool: the task raises what the work has raised,
and Celery tries again, logs or gives up.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from celery.concurrency.base import BasePool, apply_target

_log = logging.getLogger(__name__)

_THREADS: Final = 4  # for what has failed
# Celery's thread takes messages with short trips to the server, and after each it needs the interpreter, which the loop's
# thread holds for as long as it has work. Python has it wait for 5 ms at a time before it asks for its turn.
_TURN_S: Final = 0.0002
# Celery hears together of jobs that end within so long: each telling wakes its thread, which acknowledges what it was told.
_GATHER_S: Final = 0.01
_LOOK_S: Final = 1.0  # how often a pool that is to stop looks for its parent

_FAILURE: ContextVar[Exception | None] = ContextVar("triforge_failure", default=None)

Begin = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class InLoop:
    """How a task's work is done in a loop: `begin(payload, request)` is the work, which raises what has failed."""

    loop: asyncio.AbstractEventLoop
    begin: Begin


@dataclass(frozen=True, slots=True)
class _Job:
    target: Callable[..., Any]  # Celery's way to run a task in a thread
    arguments: tuple[Any, ...]  # of the target: task, id, request, body, ...
    callback: Callable[..., Any]  # hears of the end
    way: InLoop
    began: float

    @property
    def request(self) -> dict[str, Any]:
        """The message's headers, and the task's arguments."""
        found: dict[str, Any] = self.arguments[2]
        return found


def failure() -> Exception | None:
    """What the work of the job has raised for which Celery calls a task now; None if the work is still to be done."""
    return _FAILURE.get()


def _has_payload(arguments: Any) -> bool:
    """Whether a message that anybody may have put into the queue has a text for its first argument."""
    return (
        isinstance(arguments, (list, tuple)) and bool(arguments) and isinstance(arguments[0], str)
    )


class LoopPool(BasePool):
    """The pool. A task says by its attribute `in_loop` how it is begun; one without it runs in a thread."""

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS)
        self._arrived: deque[_Job] = deque()
        self._ended: list[tuple[_Job, float]] = []  # with how long they took
        self._slots = asyncio.Semaphore(self.limit or 1)
        self._running: set[asyncio.Task[None]] = set()
        self._open = 0  # jobs whose end Celery has not heard of
        self._changed = threading.Condition()
        self._parent = os.getppid()

    def on_start(self) -> None:
        """Celery's thread and the loop's take turns more often than Python would have it."""
        sys.setswitchinterval(_TURN_S)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,  # noqa: ARG002 (Celery gives none)
        callback: Callable[..., Any] = lambda _: None,
        accept_callback: Callable[[int, float], Any] | None = None,
        **_: Any,
    ) -> None:
        """Begin a job. Called by Celery, always in the same thread."""
        if accept_callback is not None:
            accept_callback(os.getpid(), time.monotonic())
        with self._changed:
            self._open += 1
        way = getattr(self.app.tasks[args[0]], "in_loop", None)
        if way is None or not _has_payload(args[2].get("args")):
            self._threads.submit(self._in_thread, target, args, callback)
            return
        self._arrived.append(_Job(target, args, callback, way, time.monotonic()))
        way.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        while self._arrived:
            task = asyncio.create_task(self._work(self._arrived.popleft()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _work(self, job: _Job) -> None:
        try:
            async with self._slots:
                await job.way.begin(job.request["args"][0], job.request)
        except asyncio.CancelledError:
            self._failed(job, concurrent.futures.CancelledError())
        except Exception as error:  # noqa: BLE001 (Celery deals with it)
            self._failed(job, error)
        else:
            if not self._ended:
                job.way.loop.call_later(_GATHER_S, self._tell)
            self._ended.append((job, time.monotonic() - job.began))

    def _failed(self, job: _Job, error: Exception) -> None:
        self._threads.submit(self._in_thread, job.target, job.arguments, job.callback, error)

    def _in_thread(
        self,
        target: Callable[..., Any],
        arguments: tuple[Any, ...],
        callback: Callable[..., Any],
        failed: Exception | None = None,
    ) -> None:
        token = _FAILURE.set(failed)
        try:
            apply_target(target, arguments, {}, callback)
        except Exception:  # noqa: BLE001 (a thread has nobody to tell)
            _log.exception("Celery could not run a job")
        finally:
            _FAILURE.reset(token)
            self._closed()

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        for job, seconds in ended:
            try:
                job.callback((0, None, seconds))
            except Exception:  # noqa: BLE001 (it is done; if Celery does not know, it comes back and finds that)
                _log.exception("Celery did not take note of a job's end")
            self._closed()

    def _closed(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def on_stop(self) -> None:
        """Wait until all jobs have ended, as a pool of threads does.

        How long they may take is up to whoever ends the process. An orphan has nobody who would, and what its jobs wait for
        may have died with its parent: it waits for the soft shutdown's time. What is left then comes back to other workers.
        """
        begun = time.monotonic()
        with self._changed:
            while not self._changed.wait_for(lambda: self._open == 0, _LOOK_S):
                if os.getppid() == self._parent:
                    continue
                if time.monotonic() - begun > self.app.conf.worker_soft_shutdown_timeout:
                    _log.warning("ends with %d jobs: its parent is gone", self._open)
                    break
            left = self._open
        self._threads.shutdown(wait=not left, cancel_futures=bool(left))
        super().on_stop()
