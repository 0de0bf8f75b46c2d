"""The guard of any service: undeclared routes, ids of traces, and pages of other origins."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry

from tests.service.env_service import client_of
from tests.service.keyed import Locks
from triforge.access.callers import Rule
from triforge.access.gate import Gate
from triforge.config import Settings
from triforge.web.app import install
from triforge.web.guard import Entrance, guard
from triforge.web.origins import policy_of


def app_with(rules: dict[str, Rule], entrance: Entrance) -> FastAPI:
    app = FastAPI()
    install(app, registry=CollectorRegistry())

    @app.get("/declared")
    @app.get("/forgotten")
    async def answer() -> int:
        return 1

    @app.get("/heard")
    async def heard(request: Request) -> list[str]:
        return [name for name in ("baggage", "traceparent") if name in request.headers]

    guard(app, rules, entrance)
    return app


async def test_an_undeclared_route_is_open_to_services_only(locks: Locks) -> None:
    app = app_with({"GET /declared": Rule(requires="read")}, locks.entrance())
    async with client_of(app) as http:
        for scope, declared, forgotten in (("admin", 200, 404), ("service", 200, 200)):
            headers = locks.headers(scope)
            assert (await http.get("/declared", headers=headers)).status_code == declared
            assert (await http.get("/forgotten", headers=headers)).status_code == forgotten
            other = await http.put("/declared", headers=headers)
            assert (other.status_code, other.headers["allow"]) == (405, "GET")


async def test_ids_and_traces_are_read_from_services_and_where_no_keys_are_required(
    locks: Locks,
) -> None:
    rules = {"GET /heard": Rule(requires="read")}
    sent = {"baggage": "triforge.run=r1", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    for entrance, scope, heard in (
        (locks.entrance(), "admin", []),
        (locks.entrance(), "service", list(sent)),
        (Entrance(), "none", list(sent)),
    ):
        async with client_of(app_with(rules, entrance)) as http:
            reply = await http.get("/heard", headers={**locks.headers(scope), **sent})
            assert reply.json() == heard, scope
        await entrance.gate.drain()


@pytest.mark.parametrize(("origins", "allowed"), [("", None), ("https://a.example, https://b.example", "https://a.example")])  # fmt: skip
async def test_pages_of_other_origins_are_served_only_if_they_are_named(
    origins: str, allowed: str | None
) -> None:
    settings = Settings(cors_origins=origins)
    app = app_with({}, Entrance(gate=Gate(None), origins=policy_of(settings)))
    async with client_of(app) as http:
        sent = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        assert (await http.options("/declared", headers=sent)).headers.get("access-control-allow-origin") == allowed  # fmt: skip
        sent["Origin"] = "https://evil.example"
        assert (
            "access-control-allow-origin" not in (await http.get("/declared", headers=sent)).headers
        )
