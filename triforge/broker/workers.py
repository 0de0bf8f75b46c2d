"""Celery: the app that sends jobs, and the workers that serve a queue."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

from celery import Celery
from celery.signals import setup_logging

from triforge.broker.loop_pool import LoopPool
from triforge.broker.names import QUEUE_OF
from triforge.broker.transport import use_steady_transport
from triforge.event_loop import new_event_loop

_Any = TypeVar("_Any")


def celery_app(redis_url: str) -> Celery:
    """A Celery app for workers: JSON only, late acknowledgement, no result backend.

    Late acknowledgement and rejection on a lost worker bring a job back after a crash; the fast sweep makes that a
    matter of seconds (kombu's own cadence is about 100 s). Leases, not the visibility timeout, decide who works.
    """
    use_steady_transport()
    app = Celery("triforge", broker=redis_url)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_soft_shutdown_timeout=10,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": 3600,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_keepalive": True,
        },
        task_publish_retry=False,
        task_routes={task: {"queue": queue} for task, queue in QUEUE_OF.items()},
    )
    return app


def start_worker(app: Celery, queue: str, *, concurrency: int, threads: bool = False) -> None:
    """Serve one queue until SIGTERM. Blocks. Log lines keep the form that the process has given them.

    Args:
        app: from `celery_app`, with the queue's tasks.
        queue: its name.
        concurrency: jobs at a time.
        threads: have each job wait in a thread of its own, as Celery does; else they all run in the loop that their
            tasks name (`LoopPool`).
    """
    if logging.getLogger().handlers:
        setup_logging.connect(_keep_logging)  # or Celery sets the root's level and writes banners
    if not threads:
        app.conf.worker_pool = LoopPool
    app.worker_main(
        [
            "--quiet", "worker", "-Q", queue, *(("-P", "threads") if threads else ()), "-c", str(concurrency),
            "-l", "WARNING", "-n", f"{queue}-{uuid.uuid4().hex[:8]}@%h", "--without-gossip", "--without-mingle",
            "--without-heartbeat",
        ]
    )  # fmt: skip


def _keep_logging(**_: Any) -> None:
    """Celery sets up no logging where somebody listens to this signal."""


class LoopThread:
    """One event loop in a thread of its own, shared by all of a worker's Celery threads.

    All jobs of a worker then share one connection pool, and K episodes of many groups interleave in one loop.
    """

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="loop")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Any]) -> _Any:
        """Run a coroutine in the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the loop beside everything else, for as long as the process lives."""
        asyncio.run_coroutine_threadsafe(work, self.loop)
