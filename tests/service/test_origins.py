"""A web page that the user of a deployment without keys has open reaches no service and no engine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import Message, Scope

from services.dashboard.apis import Apis
from services.dashboard.app import create_app as dashboard_app
from services.env_adapter.openenv.server import Served
from services.env_adapter.openenv.server import create_app as openenv_app
from services.env_adapter.openenv.session import Tasks
from services.local_engine.app import create_app as engine_app
from services.policy.api.routes import routes as policy_routes
from services.reward.app import create_app as reward_app
from services.trainer.app import create_app as trainer_app
from tests.service.env_service import api, game
from tests.service.keyed import Locks, fresh
from triforge.config import Settings
from triforge.environments import registry
from triforge.web.app import install
from triforge.web.guard import Entrance
from triforge.web.origins import OriginPolicy, policy_of

NOTHING: Any = SimpleNamespace()
EVIL = "https://evil.example"
JSON = {"content-type": "application/json"}
POOL = {"name": "p", "environment": "household", "tasks": [{"params": game()}]}


async def _ready() -> None: ...


def app_of(service: str, folder: Path) -> Any:
    """A service with nothing behind it: what is refused is refused before."""
    if service == "env_adapter":
        return api(fresh(folder))
    if service == "trainer":
        return trainer_app(runs=NOTHING, orchestrator=None, ready=_ready)
    if service == "reward":
        return reward_app(api=NOTHING)
    if service == "dashboard":
        return dashboard_app(apis=Apis({}))
    if service == "local engine":
        return engine_app(engine=NOTHING, served_name="tiny")
    if service == "openenv":
        family = registry.family("sokoban")
        tasks = Tasks(family, family.generate(count=1, seed=1, options={"moves": [2, 4]}))
        return openenv_app(served=Served(tasks=tasks, options={}, description="", version="1"))
    app = FastAPI()
    install(app, registry=CollectorRegistry())
    app.include_router(policy_routes(NOTHING, role="policy"))
    return app


STEERED = {
    "env_adapter": "/v1/pools/p/retire",
    "trainer": "/v1/runs/r/stop",
    "reward": "/v1/judge",
    "policy": "/v1/weights",
    "dashboard": "/",
    "local engine": "/pause_generation",
    "openenv": "/reset",
}


def browser(app: Any, name: str = "localhost:8003") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=f"http://{name}")


@pytest.mark.parametrize("service", STEERED)
async def test_a_foreign_page_steers_no_service(service: str, tmp_path: Path) -> None:
    app, path = app_of(service, tmp_path), STEERED[service]
    async with browser(app) as http:
        for sent in (
            {"origin": EVIL},
            {"origin": "null"},
            {"origin": "http://localhost:3000"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site", "origin": "http://localhost:8003"},
        ):
            for headers in (sent, {**sent, **JSON}, {**sent, "content-type": "text/plain"}):
                reply = await http.post(path, content=b"{}", headers=headers)
                assert reply.status_code == 403, (headers, reply.text)
            assert (await http.post(path, headers=sent)).status_code == 403
        assert "TRIFORGE_CORS_ORIGINS" in reply.text
    async with browser(app, "attacker.example:8003") as http:
        for reply in (await http.get(path), await http.post(path, json={})):
            assert reply.status_code == 403
            assert "attacker.example" in reply.text


@pytest.mark.parametrize("service", [name for name in STEERED if name != "dashboard"])
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_a_body_that_needs_no_preflight_is_taken_nowhere(
    service: str, kind: str, tmp_path: Path
) -> None:
    async with browser(app_of(service, tmp_path)) as http:
        reply = await http.post(
            STEERED[service], content=json.dumps({}), headers={"content-type": kind} if kind else {}
        )
    assert reply.status_code == 415
    assert "Content-Type: application/json" in reply.text


async def test_a_pool_is_made_of_json_or_its_lines_and_of_nothing_that_a_form_sends(
    tmp_path: Path,
) -> None:
    async with browser(app_of("env_adapter", tmp_path)) as http:
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "text/plain; application/json",
        ):
            reply = await http.post(
                "/v1/pools", content=json.dumps(POOL), headers={"content-type": kind}
            )
            assert reply.status_code == 415
            assert "application/x-ndjson" in reply.json()["detail"]
        made = await http.post("/v1/pools", json=POOL)
        assert made.status_code == 201
        line = json.dumps({"params": game(30)})
        lines = {"content-type": "application/x-ndjson; charset=utf-8"}
        head = {"name": "q", "environment": "household"}
        made = await http.post("/v1/pools", params=head, content=line, headers=lines)
        assert made.status_code == 201
        paused = await http.post("/v1/pools/p/pause")  # without a body: what no form can send
        assert paused.status_code == 200
        named = {"content-type": "text/plain"}
        assert (await http.post("/v1/pools/p/resume", headers=named)).status_code == 415
        assert (await http.get("/v1/pools/p")).json()["state"] == "paused"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8003", 200),
        ("localhost", 200),
        ("LOCALHOST:8003", 200),
        ("triforge.localhost:8003", 200),
        ("[::1]:8003", 200),
        ("10.1.2.3", 200),
        ("env-adapter:8003", 200),
        ("named.example.org:8003", 200),
        ("attacker.example", 403),
        ("127.0.0.1.attacker.example", 403),
        ("localhost.attacker.example:8003", 403),
        ("user@attacker.example", 403),
        ("attacker.example:x", 403),
        ("[::1", 403),
    ],
)
async def test_an_api_answers_under_names_that_no_other_site_can_own(
    host: str, status: int
) -> None:
    app = FastAPI()
    install(app, registry=CollectorRegistry(), origins=policy_of(Settings(own_hosts="Named.example.org")))  # fmt: skip
    async with browser(app) as http:
        reply = await http.get("/healthz", headers={"host": host})
    assert reply.status_code == status
    assert status == 200 or "TRIFORGE_OWN_HOSTS" in reply.text


async def test_own_pages_links_and_named_origins_are_let_in(tmp_path: Path) -> None:
    entrance = Entrance(origins=OriginPolicy(origins=frozenset({"https://friend.example"})))
    app = api(fresh(tmp_path), entrance=entrance)
    async with browser(app) as http:
        for sent in (
            {},
            {"origin": "http://localhost:8003", "sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
            {"origin": "https://friend.example", "sec-fetch-site": "cross-site"},
        ):
            assert (await http.post("/v1/pools/p/pause", headers=sent)).status_code == 404
            assert (await http.get("/v1/pools", headers=sent)).status_code == 200
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert (await http.get("/docs", headers=link)).status_code == 200
        assert (await http.post("/v1/pools/p/pause", headers=link)).status_code == 403
        link["sec-fetch-mode"] = "no-cors"  # an image, a script
        assert (await http.get("/v1/pools", headers=link)).status_code == 403


async def test_no_link_flushes_the_cache_of_an_engine() -> None:
    async with browser(engine_app(engine=NOTHING, served_name="tiny")) as http:
        for sent in (
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
            {"origin": EVIL},
        ):
            assert (await http.get("/flush_cache", headers=sent)).status_code == 403


async def test_where_keys_are_asked_for_any_name_may_stand_in_front(tmp_path: Path) -> None:
    keyed = Settings(auth="keys", service_secret="x" * 24)  # type: ignore[arg-type]
    assert policy_of(keyed).hosts is None
    locks = Locks(fresh(tmp_path))
    app = FastAPI()
    install(app, registry=CollectorRegistry(), origins=policy_of(keyed))
    async with browser(app, "triforge.example.com") as http:
        assert (await http.get("/healthz")).status_code == 200
        sent = {"origin": EVIL, **locks.headers("admin")}
        assert (await http.post("/healthz", json={}, headers=sent)).status_code == 403
    locks.database.close()


@pytest.mark.parametrize(
    "header", [(b"origin", EVIL.encode()), (b"host", b"attacker.example"), (b"sec-fetch-site", b"same-site")]
)  # fmt: skip
async def test_a_foreign_page_opens_no_websocket(
    header: tuple[bytes, bytes], tmp_path: Path
) -> None:
    app = app_of("openenv", tmp_path)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), header] if header[0] != b"host" else [header]
    scope: Scope = {"type": "websocket", "path": "/ws", "headers": headers, "app": app}
    await app(scope, receive, send)
    assert [(message["type"], message.get("code")) for message in sent] == [
        ("websocket.close", 1008)
    ]
