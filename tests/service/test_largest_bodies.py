"""The largest bodies of each route next to a probe: no request of a service holds up the others for long."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from services.dashboard.apis import Apis
from services.dashboard.app import create_app as dashboard_app
from services.env_adapter.app import RULES as ENV_ADAPTER
from services.env_adapter.sessions.trajectories import step_rewards
from services.policy.api.sessions import Sessions
from services.policy.app import create_app
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from services.reward.app import JudgeApi
from services.reward.app import create_app as judge_app
from services.trainer.app import create_app as trainer_app
from services.trainer.runs.routes import RULES as TRAINER
from services.trainer.runs.runs import Runs
from services.trainer.runs.store import RunStore
from tests.service.env_service import api, client_of
from tests.service.keyed import fresh
from triforge.broker import MemoryBroker, SessionLog
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.config import Settings
from triforge.environments.rows import JSONL
from triforge.store.artifacts import ArtifactStore
from triforge.testing.model_folders import chatml_folder
from triforge.types import Sampling, Turn
from triforge.web.server import config_of

# Seconds of processor time between two turns of the event loop: unlike those of a clock they do not grow with what else
# runs on the machine, but for a neighbour on the same core. Each case takes less than 0.25 s; the rest is for them.
MOST = 1.0
LONG = "the quick brown fox jumps. " * ((1 << 22) // 27 - 20)
SHORT = {"role": "user", "content": "a"}
WHOLE = 60 * 2**20
IDS = 3_999_000
MIB = 2**20
JSON = "application/json"
POOLS = "/v1/pools?name=a&environment=household"
MEDIA = {POOLS: JSONL, "/actions": "application/x-www-form-urlencoded"}
FACE = "\N{GRINNING FACE}"
POOL = '{"name":"a","environment":"household",%s}'
CONFIG = '{"pool":"kitchen","config":{%s}}'
_PART = 2**18  # bytes of a body that arrive at a time


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


@pytest.fixture(autouse=True, scope="module")
def served() -> Iterator[None]:
    """Keep the modules of the tests out of garbage collections, as a service does with its own."""
    config_of(FastAPI(), "127.0.0.1", 1)
    assert gc.get_freeze_count()
    yield
    gc.unfreeze()


async def probed(
    app: Any, route: str, body: bytes, key: str = "", *, media: str = JSON
) -> tuple[int, float]:
    """Send a body in parts without a client that works in this event loop too; return the status and the longest gap."""
    worst, last = 0.0, time.process_time()
    ends = range(0, len(body) + 1, _PART)
    parts, status = iter([body[end : end + _PART] for end in ends]), 0
    method, address = route.split() if " " in route else ("POST", route)
    path, _, query = address.partition("?")

    async def receive() -> dict[str, Any]:
        part = next(parts, None)
        if part is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": len(part or b"") == _PART}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    async def probe() -> None:
        nonlocal worst, last
        while True:
            await asyncio.sleep(0.002)
            now = time.process_time()
            worst, last = max(worst, now - last), now

    headers = {"host": "127.0.0.1", "origin": "http://127.0.0.1", "content-type": media}
    if key:
        headers["authorization"] = f"Bearer {key}"
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "scheme": "http", "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
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


def many(text: str, size: int) -> str:
    return ",".join([text] * (size // (len(text) + 1)))


def named(size: int) -> str:
    return ",".join(f'"x{n:06}":1' for n in range(size // 12))


OTHERS: dict[str, tuple[str, str, str]] = {
    "many tasks": ("env_adapter", "/v1/pools", POOL % f'"tasks":[{many("{}", 1_450_000)}]'),
    "lists": ("env_adapter", "/v1/pools", POOL % f'"options":{{"x":[{many("[]", 1_450_000)}]}}'),
    "a pool's fields": ("env_adapter", "/v1/pools", POOL % named(4 * MIB - 60)),
    "a pool's options": ("env_adapter", "/v1/pools", POOL % f'"options":{{{named(4 * MIB - 60)}}}'),
    "a pool's name": ("env_adapter", "/v1/pools", json.dumps({"name": FACE * (4 * MIB // 12 - 9)})),
    "a line of lists": ("env_adapter", POOLS, f"[{many('[]', MIB - 3)}]"),
    "a line of fields": ("env_adapter", POOLS, f'{{"params":{{"objects":{{{named(MIB - 40)}}}}}}}'),
    "options to check": ("env_adapter", f"GET /v1/pools/kitchen/check?options=[{many('[]', 15_900)}]", ""),
    "a run's fields": ("trainer", "/v1/runs", f'{{"pool":"kitchen",{named(MIB - 30)}}}'),
    "a config's fields": ("trainer", "/v1/runs", CONFIG % named(230_000)),
    "a run's options": ("trainer", "/v1/runs", CONFIG % f'"env_adapter":{{"options":{{{named(230_000)}}}}}'),
    "a run's numbers": ("trainer", "/v1/runs", CONFIG % f'"run":{{"seed":[{many("1", 190_000)}]}}'),
    "measures": ("trainer", "GET /v1/runs/a/steps?measures=" + "a," * 3_900, ""),
    "a form": ("dashboard", "/actions", "&".join(["a=1"] * 2**14)),
    "a reason": ("dashboard", "/actions", "kind=tasks&id=a&verb=pause&reason=" + "%E9" * 21_000),
    "an id": ("dashboard", "/actions", "kind=tasks&verb=pause&id=" + FACE * 16_000),
    "runs to compare": ("dashboard", "GET /compare?" + "run=a&" * 10_000, ""),
    "filters": ("dashboard", "GET /rollouts?run_id=a&" + "x=a&" * 15_000, ""),
}  # fmt: skip
FIELDS = f"{{{named(2**16 - 4)}}}".encode()  # of a small body


@pytest.fixture
async def apps(tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """The services without a model by name, with a pool."""
    database = fresh(tmp_path)
    env_adapter = api(database)
    async with client_of(env_adapter) as http:
        pool = {"name": "kitchen", "environment": "household", "generate": {"count": 4}}
        assert (await http.post("/v1/pools", json=pool)).status_code == 201
    pools = EnvAdapterClient("http://x", transport=httpx.ASGITransport(env_adapter))
    store, artifacts = RunStore(database), ArtifactStore("memory://bodies")
    runs = Runs(
        store=store, pools=pools, broker=MemoryBroker(), artifacts=artifacts, settings=Settings()
    )

    async def ready() -> None: ...

    lost = httpx.MockTransport(lambda _: httpx.Response(404, json={"detail": "no"}))
    yield {
        "env_adapter": env_adapter,
        "trainer": trainer_app(runs=runs, orchestrator=None, ready=ready),
        "dashboard": dashboard_app(
            apis=Apis({"trainer": "http://x", "env_adapter": "http://x"}, transport=lost)
        ),
    }
    await pools.close()


async def test_nor_do_those_of_any_other_route(apps: dict[str, Any]) -> None:
    for service, rules in (("env_adapter", ENV_ADAPTER), ("trainer", TRAINER)):
        for route in rules:
            if route.startswith(("POST", "PATCH")):
                path = re.sub("{.*}", "x", route)
                status, gap = await probed(apps[service], path, FIELDS)
                assert (400 <= status < 500, gap < MOST) == (True, True), (route, status, gap)


@pytest.mark.parametrize("case", OTHERS)
async def test_nor_do_those_of_the_other_services(apps: dict[str, Any], case: str) -> None:
    service, route, body = OTHERS[case]
    status, gap = await probed(apps[service], route, body.encode(), media=MEDIA.get(route, JSON))
    assert (400 <= status < 500, gap < MOST) == (True, True), (status, gap)


def test_many_rewards_of_many_answers_are_found_at_once() -> None:
    turns = tuple(Turn.model_construct(answer=n, choice=0) for n in range(4_500))
    began = time.process_time()
    assert len(step_rewards(turns, {str(n): 1.0 for n in range(4_500)})) == 4_500
    assert time.process_time() - began < MOST
