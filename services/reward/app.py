"""The room's door: `POST /v1/judge`."""

from __future__ import annotations

from fastapi import FastAPI

from services.doors.furniture import Ready, install
from services.doors.guard import Entrance, guard
from services.doors.limits import MAX_BODY
from services.reward.access import RULES
from services.reward.door import JudgeDoor
from services.reward.routes import add_routes


def create_app(
    *,
    door: JudgeDoor,
    ready: Ready | None = None,
    max_body: int = MAX_BODY,
    entrance: Entrance | None = None,
) -> FastAPI:
    """The ASGI app of reward.

    Args:
        door: answers the requests.
        ready: raises while the policy room that judges cannot be asked.
        max_body: bytes of a request's body; a larger one is a 413.
        entrance: who is let in; None lets in everybody.
    """
    app = FastAPI(title="triforge reward", version="1")
    install(app, ready=ready, max_body=max_body)
    add_routes(app, door=door)
    guard(app, RULES, entrance or Entrance())
    return app
