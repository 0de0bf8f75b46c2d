"""The service's API: `POST /v1/judge`."""

from __future__ import annotations

from fastapi import FastAPI

from services.reward.access import RULES
from services.reward.api import JudgeApi
from services.reward.routes import add_routes
from triforge.web.furniture import Ready, install
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MAX_BODY


def create_app(
    *,
    api: JudgeApi,
    ready: Ready | None = None,
    max_body: int = MAX_BODY,
    entrance: Entrance | None = None,
) -> FastAPI:
    """The ASGI app of reward.

    Args:
        api: answers the requests.
        ready: raises while the policy service that judges cannot be asked.
        max_body: bytes of a request's body; a larger one is a 413.
        entrance: who is let in; None lets in everybody.
    """
    app = FastAPI(title="triforge reward", version="1")
    install(app, ready=ready, max_body=max_body)
    add_routes(app, api=api)
    guard(app, RULES, entrance or Entrance())
    return app
