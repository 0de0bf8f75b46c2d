"""Metrics of the deployment and of runs for Prometheus."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.trainer.loop.gauges import DeploymentGauges, Staleness, StepGauges
from triforge.errors import UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.types import RunStep


def record(run: str, step: int, **metrics: float) -> RunStep:
    return RunStep(
        run_id=run, step=step, at=0.0, policy_version=1, reward_version=1, metrics=metrics
    )


class Queues:
    def __init__(self) -> None:
        self.away = False

    async def depth(self, queue: str) -> int:
        if self.away:
            raise UnavailableError("Redis does not answer")
        return len(queue)

    async def oldest_s(self, queue: str) -> float:
        return 2.5


class Runs:
    def __init__(self) -> None:
        self.away = False

    def count_by_status(self) -> dict[str, int]:
        if self.away:
            raise UnavailableError("the database does not answer")
        return {"running": 1, "failed": 2}


async def test_queues_runs_and_service_are_shown_as_they_are(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    store = ArtifactStore(str(tmp_path / "not" / "there" / "yet"))
    await DeploymentGauges(Queues(), Runs(), store, registry).refresh()

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"triforge_trainer_{name}", labels)

    assert shown("broker_up") == 1
    assert shown("queue_depth", queue="rollout") == 7
    assert shown("queue_oldest_seconds", queue="judge") == 2.5
    assert [shown("runs", status=s) for s in ("running", "failed", "queued")] == [1, 2, 0]
    free, size = shown("artifacts_free_bytes"), shown("artifacts_size_bytes")
    assert free is not None
    assert size is not None
    assert 0 < free < size


async def test_what_is_away_keeps_its_last_numbers_and_hides_nothing_else(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    queues, runs = Queues(), Runs()
    gauges = DeploymentGauges(queues, runs, ArtifactStore(str(tmp_path)), registry)
    await gauges.refresh()
    queues.away = runs.away = True
    await gauges.refresh()
    assert registry.get_sample_value("triforge_trainer_broker_up") == 0
    assert registry.get_sample_value("triforge_trainer_queue_depth", {"queue": "rollout"}) == 7
    assert registry.get_sample_value("triforge_trainer_runs", {"status": "failed"}) == 2


async def test_hanging_measurements_take_one_thread_each_and_block_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, asked = threading.Event(), list[str]()

    def mount(_: Path) -> tuple[int, int, int]:
        asked.append("disk")
        silent.wait(60)
        raise OSError("stale file handle")

    class Hanging(Runs):
        def count_by_status(self) -> dict[str, int]:
            asked.append("runs")
            silent.wait(60)
            return super().count_by_status()

    monkeypatch.setattr("shutil.disk_usage", mount)
    registry, runs = CollectorRegistry(), Hanging()
    store = ArtifactStore(str(tmp_path))
    gauges = DeploymentGauges(Queues(), runs, store, registry, patience_s=0.05)
    for _ in range(5):  # Prometheus asks again and again
        await gauges.refresh()
    assert sorted(asked) == ["disk", "runs"]
    assert registry.get_sample_value("triforge_trainer_queue_depth", {"queue": "rollout"}) == 7
    silent.set()
    async with asyncio.timeout(30.0):
        while registry.get_sample_value("triforge_trainer_runs", {"status": "failed"}) != 2:
            await gauges.refresh()


def test_a_store_that_is_no_folder_shows_no_service() -> None:
    registry = CollectorRegistry()
    DeploymentGauges(Queues(), Runs(), ArtifactStore("memory://a"), registry)
    names = {family.name for family in registry.collect()}
    assert "triforge_trainer_queue_depth" in names
    assert not any("artifacts" in name for name in names)


def test_staleness_is_a_histogram_of_tokens() -> None:
    registry = CollectorRegistry()
    staleness = Staleness(registry)
    staleness.add("policy", {0: 10, 1: 15})
    staleness.add("policy", {1: 5, 3: 5, 40: 1})

    def shown(name: str, **labels: str) -> float | None:
        full = f"triforge_trainer_staleness_versions_{name}"
        return registry.get_sample_value(full, {"role": "policy", **labels})

    bounds = ("0.0", "1.0", "2.0", "4.0", "16.0", "+Inf")
    assert [shown("bucket", le=bound) for bound in bounds] == [10, 30, 30, 35, 35, 36]
    assert (shown("count"), shown("sum")) == (36, 15 + 5 + 15 + 40)


def test_a_committed_step_shows_its_phases_versions_and_skipped_updates() -> None:
    registry = CollectorRegistry()
    gauges = StepGauges(registry)
    measures = {
        "seconds/play": 3.0,
        "seconds/train": 8.0,
        "seconds/overlap": 1.0,
        "policy/skipped_updates": 2.0,
    }
    gauges.show(record("run-1", 1, **measures), "pool-1")
    gauges.show(record("run-1", 2, **measures), "pool-1")

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"triforge_trainer_{name}", labels)

    assert shown("phase_seconds_sum", phase="play") == 6.0
    assert shown("phase_seconds_count", phase="train") == 2.0
    assert shown("phase_seconds_count", phase="overlap") is None
    assert shown("skipped_updates_total", role="policy") == 4.0
    assert shown("skipped_updates_total", role="reward") == 0.0
    assert shown("weight_version", role="reward") == 1.0


def test_the_last_value_of_every_measure_is_shown_until_another_run_begins() -> None:
    registry = CollectorRegistry()
    gauges = StepGauges(registry)

    def shown(measure: str, pool: str = "pool-1") -> float | None:
        return registry.get_sample_value(
            "triforge_trainer_step_measure", {"pool": pool, "measure": measure}
        )

    gauges.show(record("run-1", 1, **{"theory/mu": 1.2, "eval/greedy": 0.5}), "pool-1")
    gauges.show(record("run-1", 2, **{"theory/mu": 1.3}), "pool-1")
    assert (shown("theory/mu"), shown("eval/greedy")) == (1.3, 0.5)
    assert registry.get_sample_value("triforge_trainer_step", {"pool": "pool-1"}) == 2.0
    gauges.show(record("run-2", 0, **{"eval/greedy": 0.1}), "pool-2")
    assert (shown("theory/mu"), shown("eval/greedy", "pool-2")) == (None, 0.1)
