"""Celery's consumer as our workers need it: it outlives whatever becomes of its connection and of what lies in its queue."""

from __future__ import annotations

import contextlib
from typing import Any

from celery.worker import consumer


class Consumer(consumer.Consumer):
    """Connects again where Celery's own ends the worker, and with it everything else that it works on."""

    connection_errors: tuple[type[Exception], ...]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # bytes in a queue that are no message of kombu's
        self.connection_errors += (ValueError, TypeError, LookupError, AttributeError)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Drop a lost connection.

        Celery closes it twice. Where the first time stops half-way, the second one gives the jobs in work back through a
        connection that has no address any more (AttributeError). They are in work here still, and their leases are renewed.
        """
        with contextlib.suppress(AttributeError):
            super().on_connection_error_after_connected(exc)
