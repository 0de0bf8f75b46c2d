"""The API of a learner that broadcasts: the policy services ask here. It exists only while weights travel that way."""

from __future__ import annotations

import asyncio
import hmac

from fastapi import Depends, FastAPI, Request
from starlette.exceptions import HTTPException

from services.trainer.broadcast import Broadcaster
from triforge.types import BroadcastOffer, BroadcastRequest
from triforge.web.app import install


def create_api(broadcaster: Broadcaster, *, admin_api_key: str = "") -> FastAPI:
    """The application.

    Args:
        broadcaster: what answers.
        admin_api_key: bearer token that callers must send; empty asks for none.
    """
    app = FastAPI(title="triforge learner")
    install(app)

    def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if admin_api_key and not hmac.compare_digest(
            given.encode(), f"Bearer {admin_api_key}".encode()
        ):
            raise HTTPException(
                401,
                "a bearer token is needed: the policy service's TRIFORGE_ADMIN_API_KEY must be the learner's",
                {"WWW-Authenticate": "Bearer"},
            )

    key = [Depends(authorised)]

    @app.post("/v1/broadcasts", dependencies=key)
    async def begin(body: BroadcastRequest) -> BroadcastOffer:
        """Broadcast a published folder to so many receivers; answers where they meet."""
        return await asyncio.to_thread(broadcaster.offer, body)

    @app.delete("/v1/broadcasts/{group}", dependencies=key)
    async def end(group: str) -> dict[str, str]:
        """Nobody listens any more; answers what became of it."""
        return {"state": await asyncio.to_thread(broadcaster.end, group)}

    return app
