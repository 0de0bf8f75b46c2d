"""The trainer's application and the orchestrator that lives in it."""

from __future__ import annotations

import asyncio
from typing import Any

from services.trainer.app import create_app


class Stubborn:
    """Swallows its first cancellation, as redis-py does now and then."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.started = asyncio.Event()

    async def run_forever(self) -> None:
        self.started.set()
        while self.cancelled < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1


async def ready() -> None:
    return


async def test_the_application_ends_although_a_cancellation_of_its_orchestrator_is_swallowed() -> (
    None
):
    orchestrator: Any = Stubborn()
    app = create_app(runs=None, orchestrator=orchestrator, ready=ready)  # type: ignore[arg-type]
    async with asyncio.timeout(20), app.router.lifespan_context(app):
        await orchestrator.started.wait()
    assert orchestrator.cancelled == 2
