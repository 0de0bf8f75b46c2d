"""Two conductors on the same stores: one works on a run, and whoever has lost it can do no harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.trainer.runs.run_rows import Superseded
from services.trainer.runs.run_store import RunStore
from tests.service.fake_ring import FakePlans, Ring, ring_of
from triforge.messages import PlannedGroup, RunState, RunStep
from triforge.queues import Wire, end_task

SHORT = {"steps": 2, "groups_per_step": 2, "eval_every": 0}


@pytest.fixture
async def ring(wire: Wire, redis_url: str, tmp_path: Path) -> AsyncIterator[Ring]:
    async with ring_of(wire, redis_url, tmp_path) as made:
        yield made


def standing(ring: Ring, run: RunState) -> list[tuple[int, int, int]]:
    base = ring.store.run_state(run.id)["base"]
    return [
        (s.step, s.policy_version - base["acts"], s.reward_version - base["judges"])
        for s in ring.store.steps(run.id)
    ]


async def test_of_two_conductors_at_once_one_works_and_the_other_waits(ring: Ring) -> None:
    run = ring.submit(**SHORT)
    both = [asyncio.create_task(ring.conductor().run_forever()) for _ in range(2)]
    try:
        async with asyncio.timeout(30):
            while True:
                if ring.store.get(run.id).status == "finished":
                    break
                await asyncio.sleep(0.01)
    finally:
        for work in both:
            await end_task(work)
    assert standing(ring, run) == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    assert set(ring.trained().values()) == {1}
    assert set(ring.workers.played.values()) == {1}


class HeldPlans(FakePlans):
    """Gives a plan only when it may."""

    reached: asyncio.Event
    go: asyncio.Event

    async def plan(self, *arguments: Any, **named: Any) -> list[PlannedGroup]:
        self.reached.set()
        await self.go.wait()
        return await super().plan(*arguments, **named)


async def test_a_conductor_whose_run_was_taken_lets_go_of_it_without_a_word(ring: Ring) -> None:
    ring.plans = plans = HeldPlans(ring.troubles)
    plans.reached, plans.go = asyncio.Event(), asyncio.Event()
    run = ring.submit(**SHORT)
    stood_still = asyncio.create_task(ring.conduct(run))
    await plans.reached.wait()
    ring.store.held_by("another").take(run.id)
    plans.go.set()
    left = await stood_still
    assert (left.status, left.step, left.reason) == ("running", 0, "")
    assert not await ring.wire.is_ended(run.id), "the other one's errands would be dropped"
    assert (await ring.conduct(run)).status == "finished"
    assert standing(ring, run) == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]


WRITES: dict[str, Callable[[RunStore, str], object]] = {
    "status": lambda store, run: store.status(run),
    "say": lambda store, run: store.say(run, "waiting"),
    "set_status": lambda store, run: store.set_status(run, "failed", "late"),
    "begin": lambda store, run: store.begin(run, state={}, policy=9, reward=9),
    "note": lambda store, run: store.note(run, "window", {}),
    "add_weights": lambda store, run: store.add_weights(run, "acts", 9, "uri", "digest"),
    "commit_step": lambda store, run: store.commit_step(
        RunStep(
            run_id=run, step=0, at=time.time(), policy_version=9, reward_version=9, metrics={}, artifacts={}
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_a_conductor_that_lost_its_run_writes_nothing(ring: Ring, write: str) -> None:
    run = ring.submit()
    first, second = ring.store.held_by("first"), ring.store.held_by("second")
    first.take(run.id)
    first.begin(run.id, state={"base": {"acts": 1, "judges": 1}}, policy=1, reward=1)
    second.take(run.id)
    before = ring.store.get(run.id)
    with pytest.raises(Superseded):
        WRITES[write](first, run.id)
    assert ring.store.get(run.id) == before
    assert ring.store.steps(run.id) == ring.store.weights_of(run.id) == []
    assert ring.store.run_state(run.id) == {"base": {"acts": 1, "judges": 1}}
    WRITES[write](second, run.id)
    WRITES[write](ring.store, run.id)  # a door that conducts nothing may write as before
