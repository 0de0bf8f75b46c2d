"""env_adapter's API where keys are asked for: scopes and tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.env_adapter.app import RULES
from tests.service.env_service import api, client_of, game, rewrite
from tests.service.keyed import ORDER, Locks, opens

BODY = {"name": "kitchen", "environment": "household", "tasks": [{"params": game(h)} for h in (20, 30)]}  # fmt: skip


@pytest.fixture
async def http(locks: Locks) -> AsyncIterator[httpx.AsyncClient]:
    entrance = locks.entrance()
    app = api(locks.database, entrance=entrance)
    async with client_of(app) as client:
        yield client
    await entrance.gate.drain()


def filled(route: str) -> tuple[str, str]:
    method, path = route.split(" ", 1)
    for name in ("pool", "task_id", "proposal_id", "session_id"):
        path = path.replace(f"{{{name}}}", "missing")
    return method, path


@pytest.mark.parametrize("route", RULES)
async def test_every_route_asks_for_its_scope_and_no_less(
    http: httpx.AsyncClient, locks: Locks, route: str
) -> None:
    rule = RULES[route]
    method, path = filled(route)
    for scope in (*ORDER, "service"):
        reply = await http.request(method, path, headers=locks.headers(scope), json={})
        if scope == "none":
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"] == "Bearer"
        elif opens(scope, rule.requires):
            assert reply.status_code not in (401, 403), reply.text
        else:
            assert reply.status_code == 403, reply.text
            assert reply.json()["type"] == "urn:triforge:forbidden"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nothing", "/v1/pools/", "/v1//pools", "/healthz/x"]
)
async def test_without_a_key_the_routes_stay_hidden(
    http: httpx.AsyncClient, locks: Locks, path: str
) -> None:
    assert (await http.get(path)).status_code == 401
    seen = await http.get(path, headers=locks.headers("read"), follow_redirects=True)
    assert seen.status_code in (200, 404)


async def make(http: httpx.AsyncClient, locks: Locks, tenant: str, **body: Any) -> httpx.Response:
    return await http.post(
        "/v1/pools", json={**BODY, **body}, headers=locks.headers("submit", tenant)
    )


async def test_tenants_share_names_and_see_nothing_of_each_other(
    http: httpx.AsyncClient, locks: Locks
) -> None:
    pools = {}
    for tenant in ("blue", "red"):
        made = await make(http, locks, tenant)
        assert made.status_code == 201, made.text
        pools[tenant] = made.json()
        assert pools[tenant]["tenant"] == tenant
    red, admin = pools["red"]["id"], locks.headers("admin", "blue")
    tasks = (await http.get(f"/v1/pools/{red}/tasks", headers=locks.headers("read", "red"))).json()
    task = tasks["items"][0]["id"]
    proposal = rewrite(locks.database, task, "awaiting").id
    begun = await http.post("/v1/sessions", json={}, headers=locks.headers("submit", "red"))
    session = begun.json()["session"]["id"]
    for route in RULES:
        method, path = route.split(" ", 1)
        if "{" not in path or route.endswith("/plans"):
            continue
        where = path.replace("{pool}", red).replace("{task_id}", task).replace("{proposal_id}", proposal)  # fmt: skip
        where = where.replace("{session_id}", session)
        rollouts = {"policy_version": 1, "rollouts": [{"id": "0" * 12, "error": "x"}]}
        bodies: dict[str, Any] = {
            "rollback": {"to": task}, "reward": {"score": 1.0}, "play": {}, "draw": {}, "rollouts": rollouts,
        }  # fmt: skip
        body = {"approval": "manual"} if method == "PATCH" else bodies.get(path.split("/")[-1])
        reply = await http.request(method, where, headers=admin, json=body)
        assert reply.status_code == 404, (route, reply.text)
        assert "not exist" in reply.json()["detail"]
    listed = (await http.get("/v1/pools", headers=admin)).json()["items"]
    assert [pool["id"] for pool in listed] == [pools["blue"]["id"]]
    by_name = (await http.get("/v1/pools/kitchen", headers=admin)).json()
    assert by_name["id"] == pools["blue"]["id"]
    # and nothing was changed on the way
    after = (await http.get(f"/v1/pools/{red}", headers=locks.headers("read", "red"))).json()
    assert {**after, "proposals": {}} == {**pools["red"], "tasks": after["tasks"]}


async def test_a_sessions_key_opens_it_and_nothing_else(
    http: httpx.AsyncClient, locks: Locks
) -> None:
    made = [
        (await http.post("/v1/sessions", json={}, headers=locks.headers("submit", "red"))).json()
        for _ in range(2)
    ]
    one, two = ({"authorization": f"Bearer {session['key']}"} for session in made)
    url = f"/v1/sessions/{made[0]['session']['id']}"
    assert (await http.get(url, headers=one)).status_code == 200
    assert (await http.get(url, headers=two)).status_code == 401
    assert (await http.get(url, headers=locks.headers("read", "red"))).status_code == 200
    assert (await http.get("/v1/pools", headers=one)).status_code == 401
    assert (await http.post("/v1/sessions", json={}, headers=one)).status_code == 401
    ended = await http.post(f"{url}/end", json={}, headers=one)
    assert (ended.status_code, ended.json()["status"]) == (200, "ended")


async def test_an_operator_sees_all_tenants_and_names_one_by_id(
    http: httpx.AsyncClient, locks: Locks
) -> None:
    ids = {(await make(http, locks, tenant)).json()["id"] for tenant in ("blue", "red")}
    operator = locks.headers("read", "operator")
    page = (await http.get("/v1/pools?limit=1", headers=operator)).json()
    rest = (await http.get(f"/v1/pools?cursor={page['next_cursor']}", headers=operator)).json()
    assert {pool["id"] for pool in page["items"] + rest["items"]} == ids
    assert (await http.get("/v1/pools/kitchen", headers=operator)).status_code == 409
    for id_ in ids:
        assert (await http.get(f"/v1/pools/{id_}", headers=operator)).status_code == 200
    for who in (operator, locks.headers("service")):
        seen = await http.get("/v1/pools/kitchen", headers={**who, "Triforge-Tenant": "red"})
        assert seen.json()["tenant"] == "red"


async def test_idempotency_keys_are_a_tenants_own(http: httpx.AsyncClient, locks: Locks) -> None:
    made = [
        await http.post(
            "/v1/pools",
            json=BODY,
            headers={**locks.headers("submit", tenant), "Idempotency-Key": "k"},
        )
        for tenant in ("blue", "red", "blue")
    ]
    assert [reply.status_code for reply in made] == [201, 201, 200]
    assert made[0].json()["id"] == made[2].json()["id"] != made[1].json()["id"]


async def test_the_body_of_a_request_without_a_key_is_not_read(
    locks: Locks,
) -> None:
    app = api(locks.database, entrance=locks.entrance())
    read = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(10):
            read += 1
            yield b"x" * 10_000

    async with client_of(app) as http:
        path = "/v1/pools/p/pause"
        stranger = await http.post(path, content=chunks())
        assert read == 0
        sent = {"content-type": "application/json"} | locks.headers("submit")
        reply = await http.post(path, content=chunks(), headers=sent)
    assert (stranger.status_code, reply.status_code) == (401, 413)


async def test_a_newer_client_is_refused_and_a_service_is_served(
    http: httpx.AsyncClient, locks: Locks
) -> None:
    newer = {"Triforge-Version": "999.0.0"}
    reply = await http.get("/v1/pools", headers={**locks.headers("read"), **newer})
    assert (reply.status_code, reply.json()["type"]) == (400, "urn:triforge:version")
    assert (await http.get("/v1/pools", headers={**locks.headers("service"), **newer})).is_success
    assert (await http.get("/healthz", headers=newer)).is_success
