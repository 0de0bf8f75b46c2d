"""Every route of every service says what it asks for, and what it says exists."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

import services.env_adapter.app
import services.policy.api.routes
import services.reward.app
import services.trainer.runs.routes
from services.policy.api.routes import routes as policy_routes
from services.reward.app import add_routes as add_reward_routes
from services.trainer.runs.routes import router as trainer_router
from tests.service.env_service import api
from tests.service.keyed import fresh
from triforge.web.guard import PUBLIC_PATHS

RULES = {
    "env_adapter": services.env_adapter.app.RULES,
    "policy": services.policy.api.routes.RULES,
    "reward": services.reward.app.RULES,
    "trainer": services.trainer.runs.routes.RULES,
}


def app_of(service: str, folder: Path) -> FastAPI:
    """The routes of a service, with nothing behind them."""
    if service == "env_adapter":
        return api(fresh(folder), registry=CollectorRegistry())
    app, nothing = FastAPI(docs_url=None, redoc_url=None), cast_any(SimpleNamespace())
    if service == "policy":
        app.include_router(policy_routes(nothing, role="policy"))
    elif service == "reward":
        add_reward_routes(app, api=nothing)
    else:
        app.include_router(trainer_router)
    return app


def cast_any(given: object) -> Any:
    return given


def routes_of(app: FastAPI) -> set[str]:
    """The routes of an app, as in `Rules`, described or not, without those that every service has."""
    found = {
        f"{method.upper()} {path}"
        for path, item in app.openapi()["paths"].items()
        for method in item
    }
    for route in app.routes:
        path = getattr(route, "path", None)
        if path is not None and path not in PUBLIC_PATHS:
            found |= {f"{m} {path}" for m in getattr(route, "methods", None) or () if m != "HEAD"}
    return found


@pytest.mark.parametrize("service", RULES)
def test_every_route_says_what_it_asks_for(service: str, tmp_path: Path) -> None:
    assert routes_of(app_of(service, tmp_path)) == set(RULES[service])


@pytest.mark.parametrize("service", RULES)
def test_what_changes_anything_needs_more_than_to_read(service: str) -> None:
    for route, rule in RULES[service].items():
        assert rule.requires != "public", route
        if not route.startswith("GET "):
            assert rule.requires != "read", route


def test_keys_of_sessions_open_what_names_a_session() -> None:
    for rules in RULES.values():
        for route, rule in rules.items():
            assert ("{session_id}" in route) == (rule.requires == "session" or rule.or_session), (
                route
            )
