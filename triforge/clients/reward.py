"""Typed client of the reward service's API."""

from __future__ import annotations

import httpx

from triforge.clients.transport import http_client, post_json
from triforge.types import JudgeReply, JudgeRequest

_TIMEOUT_S = 600.0  # longer than any sensible reward.deadline_s


class RewardClient:
    """Judging by a deployment."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = http_client(
            base_url, timeout_s=_TIMEOUT_S, transport=transport, api_key=api_key
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def judge(self, request: JudgeRequest, *, deadline_s: float = 0.0) -> JudgeReply:
        """Vote on every step of a trajectory in text form; `deadline_s` seconds go on trying while the service is away."""
        reply = await post_json(
            self._http, "/v1/judge", request, deadline_s=deadline_s, repeatable=True
        )
        return JudgeReply.model_validate(reply)
