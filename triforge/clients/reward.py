"""Typed client of the reward service's API."""

from __future__ import annotations

import httpx

from triforge.clients.transport import http_client, post_json
from triforge.types import JudgeReply, JudgeRequest

_TIMEOUT_S = 600.0  # longer than any sensible reward.deadline_s


class RewardClient:
    """Judging by a deployment.

    Args:
        base_url: of the reward service, e.g. http://127.0.0.1:8002.
        api_key: sent with every request, where the deployment asks for keys.
        transport: replaces the network in tests.
    """

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
        """Vote on every step of a trajectory in text form.

        Args:
            request: the trajectory and how to vote.
            deadline_s: seconds to go on trying while the service is away or busy; 0 tries once.

        Raises:
            InputError: the request is malformed or a prompt too long.
            RewardError: the service could not judge.
            UnavailableError: the service or its model is away.
        """
        reply = await post_json(
            self._http, "/v1/judge", request, deadline_s=deadline_s, repeatable=True
        )
        return JudgeReply.model_validate(reply)
