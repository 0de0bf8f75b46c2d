"""An outcome is handled under its lease, and none is lost while a store refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.env_adapter.adaptation.adapter import AdaptWorker
from services.env_adapter.adaptation.measurement import MeasurementStore
from services.env_adapter.pools import PoolMaker
from services.env_adapter.requests import GenerateSpec, PoolRequest
from services.env_adapter.store import PoolStore
from triforge.broker import ADAPT_TASK, Job, MemoryBroker, outcome_job
from triforge.environments import registry
from triforge.errors import NotFoundError, StorageError, UnavailableError
from triforge.store.database import open_database
from triforge.types import TaskOutcome


def outcome(pool_id: str = "p", task_id: str = "t") -> TaskOutcome:
    return TaskOutcome(
        group_id="g", run_id="r", step=0, pool_id=pool_id, task_id=task_id, purpose="train",
        successes=0, measured=8, rollouts=8, policy_version=0,
    )  # fmt: skip


class Adapter:
    """Does nothing, or fails once."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.seen = 0

    async def handle(self, outcome: TaskOutcome) -> list[Any]:
        self.seen += 1
        if self.errors:
            raise self.errors.pop(0)
        return []


def worker(broker: MemoryBroker, adapter: Adapter) -> AdaptWorker:
    return AdaptWorker(broker=broker, adapter=adapter)  # type: ignore[arg-type]


@pytest.fixture
async def broker() -> MemoryBroker:
    made = MemoryBroker(lease_s=0.0)
    await made.send(outcome())
    return made


async def test_nothing_is_left_of_an_outcome_that_was_dealt_with(broker: MemoryBroker) -> None:
    await worker(broker, Adapter()).handle(outcome())
    assert (await broker.pending_outcomes(), await broker.resend_outcomes()) == (set(), 0)


async def test_an_outcome_that_comes_back_by_itself_is_left_alone_and_a_hopeless_one_forgotten(
    broker: MemoryBroker,
) -> None:
    broken = worker(broker, Adapter(StorageError("the disk is full"), NotFoundError("no task")))
    with pytest.raises(StorageError):
        await broken.handle(outcome())
    assert (await broker.pending_outcomes(), await broker.resend_outcomes()) == ({"g"}, 0)
    with pytest.raises(NotFoundError):
        await broken.handle(outcome())
    assert await broker.pending_outcomes() == set()


async def test_an_outcome_that_another_worker_holds_is_dropped_here(broker: MemoryBroker) -> None:
    adapter = Adapter()
    async with broker.lease(outcome_job("g")):
        await worker(broker, adapter).handle(outcome())
    assert adapter.seen == 0
    assert await broker.pending_outcomes() == {"g"}, "it is missed if the holder dies"


async def test_an_outcome_that_the_database_refuses_for_long_is_counted_all_the_same(
    tmp_path: Path,
) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.sqlite")
    request = PoolRequest(name="k", environment="household", generate=GenerateSpec(count=1))
    pool, _ = PoolMaker(database, registry.family).create(request, [])
    (task,) = PoolStore(database).tasks("k").items
    measurements, refusals = MeasurementStore(database), 20

    async def handle(outcome: TaskOutcome) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals > 0:
            raise StorageError("the disk is full") if refusals % 2 else UnavailableError("away")
        measurements.record(outcome)

    job, failures = Job(ADAPT_TASK, TaskOutcome, handle, watched=False), 0
    while refusals > 0:
        try:
            await job.run(outcome(pool.id, task.id).model_dump_json(), {})
        except (StorageError, UnavailableError) as error:
            failures += job.pause_s(error, failures) is not None
    assert failures == 19
    assert len(PoolStore(database).detail(task.id).measurements) == 1
