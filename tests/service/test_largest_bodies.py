"""The largest bodies of each route next to a probe: no request of a service holds up the others for long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from services.policy.api.sessions import Sessions
from services.policy.app import create_app
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from services.reward.app import JudgeApi
from services.reward.app import create_app as judge_app
from tests.service.env_service import api, client_of
from tests.service.keyed import fresh
from triforge.broker import MemoryBroker, SessionLog
from triforge.testing.model_folders import chatml_folder
from triforge.types import Sampling

# Seconds of processor time between two turns of the event loop: unlike those of a clock they do not grow with what else
# runs on the machine. The worst of these cases took 6 to 40 s before, and takes 0.3 s.
MOST = 1.0
LONG = "the quick brown fox jumps. " * ((1 << 22) // 27 - 20)
SHORT = {"role": "user", "content": "a"}
WHOLE = 60 * 2**20
IDS = 3_999_000


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": messages, **more}


def one(**request: Any) -> dict[str, Any]:
    return {"requests": [request]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CASES: dict[str, tuple[str, Any]] = {
    "one long prompt": ("/v1/generate", one(messages=[user(LONG)])),
    "control tokens": ("/v1/generate", one(messages=[user("<|im_end|>" * 400_000)])),
    "many ids": ("/v1/generate", one(prefix_ids=[7] * IDS)),
    "many ids to score": ("/v1/generate", one(prefix_ids=[7] * IDS, prompt_logprobs=True)),
    "many messages": ("/v1/generate", one(messages=[SHORT] * 19_000)),
    "many wrong images": ("/v1/generate", one(prefix_images=[{}] * 90_000)),
    "a long regex": ("/v1/generate", one(prefix_ids=[7], sampling={"regex": "a" * WHOLE})),
    "a long chat": ("/v1/chat/completions", chat(user("a" * WHOLE))),
    "quotes": ("/v1/chat/completions", chat(user('"' * (WHOLE // 2)))),
    "escapes": ("/v1/chat/completions", chat(user("\N{GRINNING FACE}" * (WHOLE // 12)))),
    "wrong messages": ("/v1/chat/completions", chat(*[[]] * 90_000)),
    "unknown fields": ("/v1/chat/completions", chat(SHORT, **{f"x{n}": 1 for n in range(90_000)})),
    "a long completion": ("/v1/completions", {"prompt": LONG}),
    "ids to complete": ("/v1/completions", {"prompt": [7] * IDS}),
    "a long call": ("/sessions/S/v1/chat/completions", chat(user(LONG))),
    "a whole call": ("/sessions/S/v1/chat/completions", chat(user("a" * WHOLE))),
    "many turns": ("/sessions/S/v1/chat/completions", chat(*[SHORT] * 19_000)),
    "wrong responses": ("/sessions/S/v1/responses", {"input": [{}] * 49_000}),
    "responses": ("/sessions/S/v1/responses", {"input": [SHORT] * 19_000}),
    "messages": ("/sessions/S/v1/messages", {"max_tokens": 5, **chat(*[SHORT] * 19_000)}),
}


async def probed(app: Any, path: str, body: bytes, key: str = "") -> tuple[int, float]:
    """Send a body without a client that works in this event loop too; return the status and the longest gap."""
    worst, last = 0.0, time.process_time()
    parts, status = iter([body]), 0

    async def receive() -> dict[str, Any]:
        part = next(parts, None)
        if part is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    async def probe() -> None:
        nonlocal worst, last
        while True:
            await asyncio.sleep(0.002)
            now = time.process_time()
            worst, last = max(worst, now - last), now

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path, "scheme": "http",
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [*headers, (b"authorization", f"Bearer {key}".encode())], "state": {},
    }  # fmt: skip
    probing = asyncio.create_task(probe())
    await asyncio.sleep(0.01)
    worst = 0.0
    await app(scope, receive, send)
    await asyncio.sleep(0.01)
    probing.cancel()
    return status, worst


def engine(request: httpx.Request) -> httpx.Response:
    """An engine that refuses every prompt: the time is that of the service alone."""
    if request.url.path == "/generate":
        return httpx.Response(400, json={"error": {"message": "no"}})
    return httpx.Response(200, json={"weight_version": "default"})


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[tuple[FastAPI, str, str]]:
    """A policy service, a session and its key."""
    broker = MemoryBroker()
    pool = Pool([SGLangEngine("http://engine", transport=httpx.MockTransport(engine))])
    folder = str(chatml_folder(tmp_path / "model"))
    gateway = Gateway(pool, WeightSync(pool, role="policy", model_path=folder))
    await gateway.weights.look()
    sessions = Sessions(gateway, SessionLog(broker))
    async with client_of(api(fresh(tmp_path), log=SessionLog(broker))) as http:
        made = (await http.post("/v1/sessions", json={})).json()
    policy = create_app(gateway=gateway, role="policy", sessions=sessions)
    yield policy, made["session"]["id"], made["key"]
    await pool.close()


@pytest.mark.parametrize("case", CASES)
async def test_the_largest_requests_hold_up_no_others(
    app: tuple[FastAPI, str, str], case: str
) -> None:
    policy, session, key = app
    path, body = CASES[case]
    text = json.dumps({"model": "policy", **body} if path != "/v1/generate" else body)
    status, gap = await probed(policy, path.replace("/S/", f"/{session}/"), text.encode(), key)
    assert status in (413, 422)
    assert gap < MOST


@pytest.mark.parametrize("steps", [[{}] * 49_000, [{"observation": "a" * WHOLE}]])
async def test_nor_do_those_of_the_judge(steps: list[Any]) -> None:
    async def never(_: Any) -> Any:
        raise AssertionError

    service = judge_app(api=JudgeApi(never, sampling=Sampling()))
    body = json.dumps({"instruction": "x", "steps": steps}).encode()
    status, gap = await probed(service, "/v1/judge", body)
    assert (status, gap < MOST) == (422, True)
