"""Descriptions of the APIs: answers that are not JSON, and refusals."""

from __future__ import annotations

from pathlib import Path
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


@pytest.fixture
def operations(tmp_path: Path) -> dict[str, Any]:
    gateway: Any = SimpleNamespace(
        metrics=SimpleNamespace(registry=CollectorRegistry()), ready=_ready
    )
    apps = [
        api(fresh(tmp_path)),
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


@pytest.mark.parametrize(
    ("route", "statuses"),
    [
        ("POST /v1/runs", {"404", "409"}),
        ("POST /v1/runs/{run_id}/stop", {"409"}),
        ("POST /v1/runs/{run_id}/resume", {"409"}),
        ("POST /v1/runs/{run_id}/rollback", {"409"}),
        ("GET /v1/runs/{run_id}/export", {"409"}),
        ("GET /v1/pools/{pool}", {"409"}),
        ("GET /v1/pools/{pool}/tasks", {"409"}),
        ("GET /v1/pools/{pool}/proposals", {"409"}),
        ("GET /v1/pools/{pool}/export", {"409"}),
        ("POST /v1/pools/{pool}/plans", {"409"}),
        ("POST /v1/weights", {"409", "502"}),
        ("POST /v1/weights/rollback", {"404", "409", "502"}),
        ("POST /v1/generate", {"404", "429", "502"}),
        ("POST /v1/chat/completions", {"404", "429", "502"}),
        ("POST /v1/judge", {"404", "429", "502"}),
    ],
)
def test_refusals_that_a_route_can_answer_are_declared(
    operations: dict[str, Any], route: str, statuses: set[str]
) -> None:
    responses = operations[route]["responses"]
    assert statuses <= set(responses)
    for status in {*statuses, "default"}:
        assert "application/problem+json" in responses[status]["content"]
