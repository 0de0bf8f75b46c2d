"""The descriptions of the APIs name the media types of responses that are not JSON."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.policy.app import create_app as policy_app
from services.reward.app import create_app as reward_app
from services.trainer.app import create_app as trainer_app
from tests.service.env_service import api
from tests.service.keyed import fresh

NOTHING: Any = SimpleNamespace()


async def _ready() -> None: ...


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    gateway: Any = SimpleNamespace(
        metrics=SimpleNamespace(registry=CollectorRegistry()), ready=_ready
    )
    apps = [
        api(fresh(tmp_path_factory.mktemp("api"))),
        trainer_app(runs=NOTHING, orchestrator=None, ready=_ready),
        reward_app(api=NOTHING),
        policy_app(gateway=gateway, role="policy"),
    ]
    return {
        f"{method.upper()} {path}": operation
        for app in apps
        for path, item in app.openapi()["paths"].items()
        for method, operation in item.items()
    }


@pytest.mark.parametrize(
    ("route", "media"),
    [
        ("GET /v1/runs/{run_id}/events", {"text/event-stream"}),
        ("GET /v1/runs/{run_id}/export", {"application/vnd.apache.parquet"}),
        ("GET /v1/runs/{run_id}/report", {"application/vnd.apache.parquet", "application/x-ndjson", "text/csv"}),
        ("GET /v1/pools/{pool}/export", {"application/x-ndjson"}),
        ("POST /v1/chat/completions", {"application/json", "text/event-stream"}),
    ],
)  # fmt: skip
def test_answers_that_are_no_json_are_not_called_so(
    operations: dict[str, Any], route: str, media: set[str]
) -> None:
    assert set(operations[route]["responses"]["200"]["content"]) == media
