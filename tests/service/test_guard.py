"""The guard of any service, what it says of undeclared routes and other origins; and Redis's buckets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry

from tests.service.env_service import api
from tests.service.keyed import Clock, Locks, fresh
from triforge.access.callers import Rule
from triforge.access.gate import Gate
from triforge.access.keys import TenantStore
from triforge.access.requests import RequestRecord
from triforge.broker.buckets import Buckets
from triforge.config import Settings
from triforge.errors import RateError, UnavailableError
from triforge.store.database import Database
from triforge.web.app import install
from triforge.web.guard import Entrance, guard
from triforge.web.origins import policy_of


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Locks]:
    database = fresh(tmp_path)
    yield Locks(database)
    database.close()


def app_with(rules: dict[str, Rule], entrance: Entrance) -> FastAPI:
    app = FastAPI()
    install(app, registry=CollectorRegistry())

    @app.get("/said")
    @app.get("/forgotten")
    @app.post("/fails")
    async def answer() -> int:
        return 1

    @app.get("/heard")
    async def heard(request: Request) -> list[str]:
        return [name for name in ("baggage", "traceparent") if name in request.headers]

    @app.post("/breaks")
    async def breaks() -> int:
        raise KeyError("inside")

    guard(app, rules, entrance)
    return app


async def test_a_route_that_nobody_declared_is_opened_to_services_only(locks: Locks) -> None:
    app = app_with({"GET /said": Rule(wants="read")}, locks.entrance())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://r"
    ) as http:
        for scope, said, forgotten in (("admin", 200, 404), ("service", 200, 200)):
            headers = locks.headers(scope)
            assert (await http.get("/said", headers=headers)).status_code == said
            assert (await http.get("/forgotten", headers=headers)).status_code == forgotten


async def test_ids_and_traces_are_taken_from_services_and_where_nobody_is_asked_for_a_key(
    locks: Locks,
) -> None:
    rules = {"GET /heard": Rule(wants="read")}
    sent = {"baggage": "triforge.run=r1", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    for entrance, scope, heard in (
        (locks.entrance(), "admin", []),
        (locks.entrance(), "service", list(sent)),
        (Entrance(), "nobody", list(sent)),
    ):
        transport = httpx.ASGITransport(app=app_with(rules, entrance))
        async with httpx.AsyncClient(transport=transport, base_url="http://r") as http:
            reply = await http.get("/heard", headers={**locks.headers(scope), **sent})
            assert reply.json() == heard, scope
        await entrance.gate.drain()


async def test_a_request_that_breaks_the_service_is_on_record(locks: Locks) -> None:
    app = app_with({"POST /breaks": Rule(wants="submit", changes=True)}, locks.entrance("r"))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://r") as http:
        assert (await http.post("/breaks", headers=locks.headers("submit"))).status_code == 500
    app = api(locks.database, entrance=locks.entrance())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://env") as http:  # fmt: skip
        found = await http.get("/v1/audit?service=r", headers=locks.headers("admin"))
    assert [e["status"] for e in found.json()["items"]] == [500]


async def test_a_record_that_cannot_be_written_keeps_nobody_from_their_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = RequestRecord(Database("sqlite:////nowhere/at/all.sqlite"), "r")
    app = app_with({"POST /fails": Rule(wants="submit", changes=True)}, Entrance(record=away))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://r"
    ) as http:
        assert (await http.post("/fails")).status_code == 200
    assert "not on record" in caplog.text


@pytest.mark.parametrize(("origins", "allowed"), [("", None), ("https://a.example, https://b.example", "https://a.example")])  # fmt: skip
async def test_pages_of_other_origins_may_ask_only_if_they_are_named(
    origins: str, allowed: str | None
) -> None:
    settings = Settings(cors_origins=origins)
    app = app_with({}, Entrance(gate=Gate(None), origins=policy_of(settings)))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://r"
    ) as http:
        sent = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        assert (await http.options("/said", headers=sent)).headers.get("access-control-allow-origin") == allowed  # fmt: skip
        sent["Origin"] = "https://evil.example"
        assert "access-control-allow-origin" not in (await http.get("/said", headers=sent)).headers


async def test_a_bucket_fills_evenly_and_is_shared_by_all_who_count(redis_url: str) -> None:
    clock = Clock(now=1000.0)
    ours, theirs = Buckets(redis_url, clock=clock), Buckets(redis_url, clock=clock)
    try:
        taken = [await one.take("blue", per_minute=6) for one in (ours, theirs) * 3]
        assert taken == [0.0] * 6
        assert await ours.take("blue", per_minute=6) == pytest.approx(10.0)
        assert await ours.take("red", per_minute=6) == 0.0
        clock.now += 9.9
        assert await theirs.take("blue", per_minute=6) == pytest.approx(0.1)
        clock.now += 0.1
        assert await theirs.take("blue", per_minute=6) == 0.0
        assert await ours.take("blue", per_minute=6) == pytest.approx(10.0)
        clock.now += 3600
        assert [await ours.take("blue", per_minute=6) for _ in range(6)] == [0.0] * 6
        assert await ours.take("blue", per_minute=6) > 0
        clock.now -= 50  # a clock that is put back gives nothing and takes nothing
        assert await ours.take("blue", per_minute=6) == pytest.approx(10.0)
        assert await ours.take("nobody", per_minute=0) == 60.0
    finally:
        await ours.close()
        await theirs.close()


async def test_redis_counts_by_its_own_clock_and_forgets_idle_tenants(redis_url: str) -> None:
    buckets = Buckets(redis_url)
    try:
        assert await buckets.take("blue", per_minute=1) == 0.0
        assert 0.0 < await buckets.take("blue", per_minute=1) <= 60.0
    finally:
        await buckets.close()
    with redis.Redis.from_url(redis_url) as client:
        assert 0 < client.ttl("tf:rate:blue") <= 120  # type: ignore[operator]


async def test_a_counter_that_is_away_says_so_at_once() -> None:
    buckets = Buckets("redis://127.0.0.1:1/0")
    try:
        with pytest.raises(UnavailableError, match="does not count"):
            await buckets.take("blue", per_minute=1)
    finally:
        await buckets.close()


async def test_a_rate_is_kept_over_the_api(locks: Locks, redis_url: str) -> None:
    TenantStore(locks.database).set("blue", requests_per_minute=2)
    buckets = Buckets(redis_url, clock=locks.clock)
    entrance = locks.entrance(limiter=buckets)
    app = api(locks.database, entrance=entrance)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://env"
    ) as http:
        headers = locks.headers("read", "blue")
        replies = [await http.get("/v1/pools", headers=headers) for _ in range(3)]
        assert (await http.get("/v1/pools", headers=locks.headers("read", "red"))).is_success
    await entrance.gate.drain()
    await buckets.close()
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[2].headers["retry-after"] == "30"
    assert replies[2].json()["type"] == f"urn:triforge:{RateError.kind}"
