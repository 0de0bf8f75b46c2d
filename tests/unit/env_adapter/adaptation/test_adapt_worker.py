"""An outcome is handled under its lease, and none is lost while a store refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from services.env_adapter.adaptation.adapter import AdaptWorker
from services.env_adapter.adaptation.settings import AdaptSettings
from triforge.broker import MemoryBroker, outcome_job
from triforge.broker.protocol import key
from triforge.errors import NotFoundError, StorageError, UnavailableError
from triforge.types import TaskOutcome


def outcome() -> TaskOutcome:
    return TaskOutcome(
        group_id="g", run_id="r", step=0, pool_id="p", task_id="t", purpose="train",
        successes=0, measured=8, rollouts=8, policy_version=0,
    )  # fmt: skip


class Adapter:
    """Does nothing, after the failures it was given."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.seen = 0

    async def handle(self, outcome: TaskOutcome) -> list[Any]:
        self.seen += 1
        if self.errors:
            raise self.errors.pop(0)
        return []


def worker(broker: MemoryBroker, adapter: Adapter) -> AdaptWorker:
    return AdaptWorker(broker=broker, adapter=adapter, settings=lambda _: AdaptSettings())  # type: ignore[arg-type]


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


async def test_an_outcome_is_sent_again_for_as_long_as_what_it_needs_is_away(
    broker: MemoryBroker,
) -> None:
    adapter = Adapter(*[StorageError("the disk is full"), UnavailableError("away")] * 10)
    for _ in range(20):
        await worker(broker, adapter).handle(outcome())
        await broker.delete(key("outcome-pause", "g"))  # as if the pause were over
        assert await broker.resend_outcomes() == 1
    await worker(broker, adapter).handle(outcome())
    assert (adapter.seen, await broker.pending_outcomes()) == (21, set())
