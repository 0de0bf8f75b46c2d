"""Sending errands from an event loop: Celery's client blocks, so a thread sends whatever waits, in one go."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from triforge.errors import UnavailableError
from triforge.queues.names import SENT_AT
from triforge.watching import tracing

_Waiting = tuple[str, str, dict[str, Any], asyncio.Future[None]]


class Outbox:
    """Errands on their way into the queue. One an event loop.

    Args:
        app: from `celery_app`.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None

    async def send(self, task: str, payload: str) -> None:
        """Send an errand; returns when the queue has it.

        Raises:
            UnavailableError: the queue does not take it.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        headers = {
            SENT_AT: time.time(),
            **tracing.headers(),
        }  # the sender's; the thread has no trace
        self._waiting.append((task, payload, headers, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        await future

    async def _send(self) -> None:
        """One hop to a thread for all that wait; who comes meanwhile goes with the next one."""
        try:
            while self._waiting:
                share, self._waiting = self._waiting, []
                try:
                    errors = await asyncio.to_thread(self._put, share)
                except BaseException:  # the loop ends
                    for *_, future in (*share, *self._waiting):
                        future.cancel()
                    raise
                for (*_, future), error in zip(share, errors, strict=True):
                    if future.done():  # its sender was cancelled
                        continue
                    if error is None:
                        future.set_result(None)
                    else:
                        future.set_exception(error)
        finally:
            self._sending = None

    def _put(self, share: list[_Waiting]) -> list[Exception | None]:
        errors: list[Exception | None] = []
        for task, payload, headers, _ in share:
            try:
                self._app.send_task(task, args=[payload], headers=headers)
                errors.append(None)
            except (OperationalError, RedisError, OSError) as error:
                unavailable = UnavailableError(
                    f"the queue does not take errands ({error}); is Redis running?"
                )
                unavailable.__cause__ = error
                errors.append(unavailable)
            except Exception as error:  # noqa: BLE001 (handed to whoever sends it)
                errors.append(error)
        return errors

    def close(self) -> None:
        """Close the connections to the queue."""
        self._app.close()
