"""Celery: the app that sends jobs, and the worker that serves a queue."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from celery import Celery
from celery.signals import setup_logging, worker_shutting_down

from triforge.broker.jobs import RETRIES, Job
from triforge.broker.protocol import QUEUE_OF
from triforge.errors import StorageError, UnavailableError
from triforge.event_loop import new_event_loop
from triforge.retry import RetryPolicy
from triforge.types import Message

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)
_log = logging.getLogger(__name__)


def celery_app(redis_url: str) -> Celery:
    """Return a Celery app: JSON only, late acknowledgement, no result backend.

    Late acknowledgement and rejection on a lost worker return a job to the queue after a crash, within seconds by the fast
    sweep (kombu's own takes about 100 s). Leases, not the visibility timeout, decide which worker does a job. There is no
    remote control: each killed worker would leave a mailbox in Redis.
    """
    app = Celery("triforge", broker=redis_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_enable_prefetch_count_reduction=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_soft_shutdown_timeout=10,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": 3600,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_keepalive": True,
            "socket_connect_timeout": 5,
            "max_retries": 0,
        },
        task_publish_retry=False,
        task_routes={task: {"queue": queue} for task, queue in QUEUE_OF.items()},
    )
    return app


class Worker:
    """A worker of one queue. Celery's threads wait for the jobs, which all run in one event loop and share its connections."""

    def __init__(self, redis_url: str, queue: str, *, retries: RetryPolicy = RETRIES) -> None:
        self.app = celery_app(redis_url)
        self.app.conf.worker_consumer = "triforge.broker.consumer:Consumer"
        self._queue = queue
        self._retries = retries
        self._loop = new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="loop").start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the event loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the event loop for as long as the process lives."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def register(
        self, name: str, kind: type[_M], work: Callable[[_M], Coroutine[Any, Any, None]]
    ) -> None:
        """Register the work of a task name; see `Job`."""
        job = Job(name, kind, work, self._retries)

        @self.app.task(name=name, bind=True, max_retries=None, shared=False)
        def task(this: Any, payload: str) -> None:
            try:
                self.run(job.run(payload, vars(this.request)))
            except (UnavailableError, StorageError) as error:
                pause = job.pause_s(error, this.request.retries)
                if pause is not None:
                    raise this.retry(exc=error, countdown=pause) from error

    def serve(self, *, concurrency: int) -> None:
        """Do so many jobs at a time until SIGTERM. Blocks. Log lines keep the form that the process has configured."""
        if logging.getLogger().handlers:  # else Celery sets the root's level and writes banners
            setup_logging.connect(_keep_logging)
        parent = os.getppid()

        def end_orphan(**_: Any) -> None:
            """End a worker whose parent is gone: no other process would, and its jobs may wait for services that ended too."""
            if os.getppid() != parent:
                _log.warning("the parent is gone: jobs that do not end go to other workers")
                timeout = self.app.conf.worker_soft_shutdown_timeout
                timer = threading.Timer(timeout, os._exit, (1,))
                timer.daemon = True
                timer.start()

        worker_shutting_down.connect(end_orphan, weak=False)
        self.app.worker_main(
            [
                "--quiet", "worker", "-Q", self._queue, "-P", "threads", "-c", str(concurrency), "-l", "WARNING",
                "-n", f"{self._queue}-{uuid.uuid4().hex[:8]}@%h",
                "--without-gossip", "--without-mingle", "--without-heartbeat",
            ]
        )  # fmt: skip


def _keep_logging(**_: Any) -> None:
    """Keep the process's logging: Celery configures none while this signal has a receiver."""
