"""The route that plays a task by given responses, and the rights that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter

from services.env_adapter.pools.requests import Responses
from services.env_adapter.rollout.plays import Plays
from triforge.access.callers import Rule
from triforge.types import TaskPlay
from triforge.web.description import answers

RULES: Final[Mapping[str, Rule]] = {
    "POST /v1/tasks/{task_id}/play": Rule(requires="submit"),
}


def play_routes(plays: Plays) -> APIRouter:
    """Return the route that plays a task."""
    router = APIRouter(prefix="/v1/tasks", tags=["tasks"])

    @router.post("/{task_id}/play", responses=answers(429))
    async def play(task_id: str, given: Responses) -> TaskPlay:
        """Play a version in a fresh environment with the options of its pool, by given responses; nothing is kept."""
        return await plays.play(task_id, given.responses)

    return router
