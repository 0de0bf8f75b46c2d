"""The trainer's web application; the orchestrator lives in the same process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import FastAPI

from services.trainer.loop.orchestrator import Orchestrator
from services.trainer.runs.routes import RULES, router
from services.trainer.runs.runs import Runs
from triforge import __version__
from triforge.event_loop import end_task
from triforge.web.app import install
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MEBIBYTE, Bounds

# A config of at most 256 KiB, each of whose characters may be written as an escape.
_BODIES = {
    "POST /v1/runs": Bounds(MEBIBYTE, numbers=100_000),
    "POST /v1/runs/{run_id}/labels": Bounds(MEBIBYTE),
}


def create_app(
    *,
    runs: Runs,
    orchestrator: Orchestrator | None,
    ready: Callable[[], Awaitable[None]],
    entrance: Entrance | None = None,
    refresh: Callable[[], Awaitable[None]] | None = None,
) -> FastAPI:
    """Build the application; without an orchestrator it only serves the routes, without an entrance it asks for no key.

    `ready` raises when the service cannot serve; `refresh` updates the measures of the deployment on `/metrics`.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(orchestrator.run_forever()) if orchestrator else None
        yield
        if work:
            await end_task(work)

    app = FastAPI(title="triforge trainer", version=__version__, lifespan=lifespan)
    app.state.runs = runs
    app.include_router(router)
    entrance = entrance or Entrance()
    install(app, ready=ready, bodies=_BODIES, origins=entrance.origins, refresh=refresh)
    guard(app, RULES, entrance)
    return app
