"""The routes of the API; they translate and do nothing else."""

from __future__ import annotations

from fastapi import FastAPI

from services.reward.api import JudgeApi
from triforge.types import JudgeReply, JudgeRequest


def add_routes(app: FastAPI, *, api: JudgeApi) -> None:
    """Add all routes of reward to its app."""

    @app.post("/v1/judge", response_model=JudgeReply)
    async def judge(request: JudgeRequest) -> JudgeReply:
        """Vote on every step of a trajectory in text form."""
        return await api.judge(request)
