"""Celery's consumer for our workers: it survives the loss of its connection and garbage in its queue."""

from __future__ import annotations

import contextlib
from typing import Any

from celery.worker import consumer


class Consumer(consumer.Consumer):
    """A consumer that connects again where Celery's own ends the worker and all its jobs."""

    connection_errors: tuple[type[Exception], ...]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # for bytes in a queue that are no message of kombu's
        self.connection_errors += (ValueError, TypeError, LookupError, AttributeError)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Drop a lost connection.

        Celery closes it twice. When the first close fails half-way, the second one returns the jobs in work through a
        connection without an address (AttributeError). The jobs are still in work here, and their leases are renewed.
        """
        with contextlib.suppress(AttributeError):
            super().on_connection_error_after_connected(exc)
