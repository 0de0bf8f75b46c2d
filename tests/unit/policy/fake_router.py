"""SGLang's router, with the manners of sglang-router 0.3.2."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from tests.fake_engine import FakeEngine


@dataclass(eq=False)
class FakeRouter:
    """It has no route for weights, pauses or aborts, and takes no lists of sampling parameters or of request names."""

    workers: dict[str, FakeEngine]  # by address
    dead: set[str] = field(default_factory=set)  # addresses that get no requests
    gone: bool = False  # nothing listens any more
    sent: list[str] = field(default_factory=list)  # addresses of requests, oldest first
    _turn: itertools.count[int] = field(default_factory=itertools.count)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.gone:
            raise httpx.ConnectError("the fake router is gone")
        answer = JSONResponse(None, 404)
        if scope["path"] == "/workers":
            answer = JSONResponse({"workers": self._rows(), "total": len(self.workers)})
        if scope["path"] == "/generate":
            body = await Request(scope, receive).json()
            lists = [
                name for name in ("sampling_params", "rid") if isinstance(body.get(name), list)
            ]
            if not lists:
                await self._generate(body, scope, send)
                return
            answer = JSONResponse({"error": f"{lists[0]}: invalid type: sequence"}, 422)
        await answer(scope, receive, send)

    def _rows(self) -> list[dict[str, object]]:
        return [
            {"url": url, "worker_type": "regular", "is_healthy": url not in self.dead, "load": 0}
            for url in self.workers
        ]

    async def _generate(self, body: object, scope: Scope, send: Send) -> None:
        alive = [url for url in self.workers if url not in self.dead]
        chosen = alive[next(self._turn) % len(alive)]
        self.sent.append(chosen)

        async def again() -> Message:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        await self.workers[chosen](scope, again, send)
