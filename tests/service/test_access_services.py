"""The trainer, the policy service and the reward service where keys are asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.policy.api.routes import RULES as POLICY_RULES
from services.policy.app import create_app as policy_app
from services.policy.metrics import Metrics
from services.reward.app import create_app as reward_app
from services.trainer.app import create_app as trainer_app
from services.trainer.runs.routes import RULES as TRAINER_RULES
from services.trainer.runs.runs import Runs
from services.trainer.runs.store import RunStore
from tests.service.env_service import client_of
from tests.service.keyed import ORDER, Locks, opens
from triforge.broker import Broker
from triforge.clients.policy import PolicyClient
from triforge.config import Settings
from triforge.errors import NotFoundError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.types import Params, PoolState, WeightsState


class Pools:
    """env_adapter with one pool, `kitchen`, of tenant blue; notes for whom it is asked."""

    def __init__(self) -> None:
        self.asked_for: list[str] = []

    async def pool(self, pool: str, *, tenant: str = "") -> PoolState:
        self.asked_for.append(tenant)
        if tenant not in ("", "blue") or pool != "kitchen":
            raise NotFoundError(f"pool {pool!r} does not exist")
        return PoolState(
            id="pool-1", name="kitchen", environment="fake", created_at=0.0,
            tasks={"train": {"active": 64}}, proposals={}, tenant="blue",
        )  # fmt: skip

    async def check_pool(self, pool: str, options: Params) -> PoolState:
        asked, self.asked_for = self.asked_for, []
        found, self.asked_for = await self.pool("kitchen"), asked
        return found


class Trainer:
    def __init__(self, locks: Locks, broker: Broker, folder: Path) -> None:
        self.pools = Pools()
        self.store = RunStore(locks.database)
        runs = Runs(
            store=self.store, pools=self.pools, broker=broker, artifacts=ArtifactStore(str(folder / "a")),
            settings=Settings(),
        )  # fmt: skip
        self.entrance = locks.entrance()
        app = trainer_app(runs=runs, orchestrator=None, ready=broker.ping, entrance=self.entrance)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://trainer")


@pytest.fixture
async def trainer(locks: Locks, broker: Broker, tmp_path: Path) -> AsyncIterator[Trainer]:
    made = Trainer(locks, broker, tmp_path)
    yield made
    await made.http.aclose()
    await made.entrance.gate.drain()


async def submit(trainer: Trainer, locks: Locks, tenant: str, **headers: str) -> httpx.Response:
    return await trainer.http.post(
        "/v1/runs", json={"pool": "kitchen"}, headers={**locks.headers("submit", tenant), **headers}
    )


@pytest.mark.parametrize("route", TRAINER_RULES)
async def test_every_route_of_the_trainer_asks_for_its_scope(
    trainer: Trainer, locks: Locks, route: str
) -> None:
    rule = TRAINER_RULES[route]
    method, path = route.replace("{run_id}", "missing").split(" ", 1)
    for scope in (*ORDER, "service"):
        reply = await trainer.http.request(method, path, headers=locks.headers(scope), json={})
        refused = reply.status_code in (401, 403)
        assert refused is not opens(scope, rule.requires), (scope, reply.text)


async def test_tenants_see_nothing_of_each_others_runs(trainer: Trainer, locks: Locks) -> None:
    made = await submit(trainer, locks, "blue")
    assert made.status_code == 201, made.text
    run = made.json()["id"]
    assert made.json()["tenant"] == "blue"
    red = locks.headers("admin", "red")
    for route in TRAINER_RULES:
        if "{run_id}" not in route:
            continue
        method, path = route.replace("{run_id}", run).replace("{step}", "1").split(" ", 1)
        bodies: dict[str, Any] = {
            "rollback": {"role": "policy", "version": 0},
            "labels": {"labels": [{"trajectory": "x", "step": 0, "label": 1}]},
        }
        body = bodies.get(path.rpartition("/")[2])
        reply = await trainer.http.request(method, path, headers=red, json=body)
        assert reply.status_code == 404, (route, reply.text)
    assert (await trainer.http.get("/v1/runs", headers=red)).json()["items"] == []
    for who in (locks.headers("read", "blue"), locks.headers("read", "operator"), locks.headers("service")):  # fmt: skip
        assert [
            r["id"] for r in (await trainer.http.get("/v1/runs", headers=who)).json()["items"]
        ] == [run]
    assert trainer.store.get(run).status == "queued"


async def test_a_run_is_started_on_ones_own_pools_only_and_an_operators_is_the_pools_tenants(
    trainer: Trainer, locks: Locks
) -> None:
    assert (await submit(trainer, locks, "red")).status_code == 404
    made = await submit(trainer, locks, "operator")
    assert made.json()["tenant"] == "blue"
    assert trainer.pools.asked_for == ["red", ""]


# ---- the policy and reward services ----


class ActiveVersion:
    """Weights that are always the same."""

    version = 3

    def state(self) -> Any:
        uri = "/artifacts/weights/run-of-a-tenant/policy/v000003"
        return WeightsState(role="policy", version=3, uri=uri, engines=1, ready=1)


class Gateway:
    """A gateway without an engine."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.weights = ActiveVersion()

    async def ready(self) -> None:
        return

    async def generate(self, requests: Any, held: Any = None) -> list[Any]:
        raise UnavailableError("no engine")


@pytest.fixture
async def policy(locks: Locks) -> AsyncIterator[httpx.AsyncClient]:
    entrance = locks.entrance()
    app = policy_app(gateway=Gateway(), role="policy", api_key="engines", entrance=entrance)  # type: ignore[arg-type]
    async with client_of(app, raises=False) as client:
        yield client
    await entrance.gate.drain()


OF_SESSIONS = [route for route, rule in POLICY_RULES.items() if rule.requires == "session"]


@pytest.mark.parametrize("route", OF_SESSIONS)
async def test_no_key_but_its_own_opens_a_session(
    policy: httpx.AsyncClient, locks: Locks, route: str
) -> None:
    method, path = route.replace("{session_id}", "0123456789ab").split(" ", 1)
    for tenant, scope in [("default", "none"), ("operator", "admin"), ("", "service")]:
        reply = await policy.request(method, path, headers=locks.headers(scope, tenant), json={})
        assert reply.status_code == 404, reply.text


@pytest.mark.parametrize("route", [r for r in POLICY_RULES if r not in OF_SESSIONS])
async def test_every_route_of_a_policy_service_asks_for_its_scope_and_weights_for_an_operator(
    policy: httpx.AsyncClient, locks: Locks, route: str
) -> None:
    wants = POLICY_RULES[route].requires
    method, path = route.replace("{model}", "policy").split(" ", 1)
    for tenant, scope in [*(("default", scope) for scope in ORDER), ("operator", "admin"), ("", "service")]:  # fmt: skip
        reply = await policy.request(method, path, headers=locks.headers(scope, tenant), json={"requests": []})  # fmt: skip
        allowed = tenant == "operator" or opens(scope, wants)
        assert (reply.status_code in (401, 403)) is not allowed, (tenant, scope, reply.text)
        if method == "GET" and allowed:
            assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("path", ["/v1/weights", "/v1/models"])
async def test_the_run_of_the_weights_is_shown_to_operators_and_services_only(
    policy: httpx.AsyncClient, locks: Locks, path: str
) -> None:
    for tenant, scope in (("operator", "read"), ("operator", "admin"), ("", "service")):
        shown = await policy.get(path, headers=locks.headers(scope, tenant))
        assert "run-of-a-tenant" in shown.text
    for scope in ORDER[1:]:
        shown = await policy.get(path, headers=locks.headers(scope, "blue"))
        assert shown.status_code == 200
        assert "run-of-a-tenant" not in shown.text


async def test_the_engines_key_opens_no_policy_service(policy: httpx.AsyncClient) -> None:
    for path in ("/v1/generate", "/v1/chat/completions", "/v1/weights"):
        reply = await policy.post(path, headers={"Authorization": "Bearer engines"}, json={})
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"


async def test_judging_asks_for_a_key_that_may_submit(locks: Locks) -> None:
    entrance = locks.entrance()
    app = reward_app(api=None, entrance=entrance)  # type: ignore[arg-type]
    async with client_of(app) as http:
        seen = [
            (await http.post("/v1/judge", headers=locks.headers(scope), json={})).status_code
            for scope in (*ORDER, "service")
        ]
    await entrance.gate.drain()
    assert seen == [401, 403, 422, 422, 422]


async def test_workers_show_the_services_secret_and_not_the_engines_key() -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(503, headers={"retry-after": "1"})

    for auth in ("keys", "open"):
        settings = Settings.from_env(
            {
                "TRIFORGE_AUTH": auth,
                "TRIFORGE_SERVICE_SECRET": "s" * 24,
                "TRIFORGE_API_KEY": "engines",
            }
        )
        client = PolicyClient.from_settings(settings, "policy")
        client._http = httpx.AsyncClient(
            transport=httpx.MockTransport(answer), base_url="http://p", headers=client._http.headers
        )
        with pytest.raises(UnavailableError):
            await client.weights()
        await client.close()
    assert sent == [f"Bearer {'s' * 24}", "Bearer engines"]
