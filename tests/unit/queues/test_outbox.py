"""Errands that wait together are sent together, and each sender hears of its own alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from triforge.errors import UnavailableError
from triforge.queues.outbox import Outbox


class Queue:
    """Celery's side: takes every errand but those called `lost`."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def send_task(self, task: str, *, args: list[str], headers: dict[str, Any]) -> None:
        if task == "lost":
            raise ConnectionError("gone")
        self.taken.append(args[0])


async def test_an_errand_that_is_refused_fails_its_own_sender_alone() -> None:
    queue = Queue()
    outbox = Outbox(queue)
    sent = [outbox.send(task, str(n)) for n, task in enumerate(("a", "lost", "b"))]
    first, second, third = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(second, UnavailableError)
    assert (first, third, queue.taken) == (None, None, ["0", "2"])


async def test_a_sender_that_gives_up_holds_nobody_up() -> None:
    queue = Queue()
    outbox = Outbox(queue)
    gone, stays = (asyncio.create_task(outbox.send("a", word)) for word in ("gone", "stays"))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert gone.cancelled()
    assert "stays" in queue.taken


async def test_nobody_waits_for_an_outbox_whose_threads_have_ended() -> None:
    outbox = Outbox(Queue())
    await asyncio.to_thread(str)  # there is an executor
    await asyncio.get_running_loop().shutdown_default_executor()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(30):
            await outbox.send("a", "late")
