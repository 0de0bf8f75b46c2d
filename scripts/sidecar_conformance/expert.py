"""A policy behind the API of OpenAI that plays household by its expert, and is wrong now and then."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.service.sidecar_services import Deployment
from triforge.environments import registry
from triforge.types import Task

_WRONG = 0.1  # of its steps


class Expert:
    """Knows a task by its first observation, among those that were drawn."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment, self._seen = deployment, 0
        self._moves: dict[str, list[str]] = {}
        self._family, self._rng = registry.family("household"), random.Random(1)  # noqa: S311 (no secret)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        first, *since = [m["content"] for m in body["messages"] if m["role"] != "system"]
        await self._learn()
        done = sum(text in self._moves[first] for text in since[::2])
        left = self._moves[first][done:]
        move = left[0] if left and self._rng.random() > _WRONG else "look"
        about = {"id": "1", "created": int(time.time()), "model": body["model"]}
        message = {"role": "assistant", "content": move}
        choice = {"index": 0, "finish_reason": "stop"}
        if not body.get("stream"):
            choices = [choice | {"message": message}]
            return JSONResponse(about | {"object": "chat.completion", "choices": choices})
        chunk = about | {
            "object": "chat.completion.chunk",
            "choices": [choice | {"delta": message}],
        }
        return Response(
            f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", media_type="text/event-stream"
        )

    async def _learn(self) -> None:
        new = self._deployment.exchange[self._seen :]
        self._seen += len(new)
        for one in new:
            if one["path"].endswith("/draw") and one["status"] == 200:
                for drawn in one["reply"]["tasks"]:
                    await self._keep(drawn)

    async def _keep(self, drawn: dict[str, Any]) -> None:
        task = Task.model_validate(drawn["task"])
        start = await self._family.make(drawn["options"]).reset(task, seed=1)
        self._moves[start.observation.text] = list(self._family.gold(task, drawn["options"]) or ())
