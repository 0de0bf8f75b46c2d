"""The routes of the door; they translate and do nothing else."""

from __future__ import annotations

from fastapi import FastAPI

from services.reward.door import JudgeDoor
from triforge.messages import JudgeReply, JudgeRequest


def add_routes(app: FastAPI, *, door: JudgeDoor) -> None:
    """Add all routes of reward to its app."""

    @app.post("/v1/judge", response_model=JudgeReply)
    async def judge(request: JudgeRequest) -> JudgeReply:
        """Vote on every step of a trajectory in text form."""
        return await door.judge(request)
