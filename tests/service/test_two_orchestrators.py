"""Two orchestrators on the same stores: one works on a run, and one that has lost its lease writes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from services.trainer.runs.store import RunStore, Superseded
from tests.service.fake_loop import FakePlans, Loop
from triforge.broker.protocol import key
from triforge.event_loop import end_task
from triforge.types import PlannedGroup, RunState, RunStep

SHORT = {"steps": 2, "groups_per_step": 2, "eval_every": 0}


def standing(loop: Loop, run: RunState) -> list[tuple[int, int, int]]:
    base = loop.store.run_state(run.id)["base"]
    return [
        (s.step, s.policy_version - base["policy"], s.reward_version - base["reward"])
        for s in loop.store.steps(run.id)
    ]


async def test_of_two_orchestrators_at_once_one_works_and_the_other_waits(loop: Loop) -> None:
    run = loop.submit(**SHORT)
    both = [asyncio.create_task(loop.orchestrator().run_forever()) for _ in range(2)]
    try:
        async with asyncio.timeout(30):
            while True:
                if loop.store.get(run.id).status == "finished":
                    break
                await asyncio.sleep(0.01)
    finally:
        for work in both:
            await end_task(work)
    assert standing(loop, run) == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    assert set(loop.trained().values()) == {1}
    assert set(loop.workers.played.values()) == {1}


class HeldPlans(FakePlans):
    """Gives a plan only when it may."""

    reached: asyncio.Event
    go: asyncio.Event

    async def plan(self, *arguments: Any, **named: Any) -> list[PlannedGroup]:
        self.reached.set()
        await self.go.wait()
        return await super().plan(*arguments, **named)


async def test_a_orchestrator_whose_run_was_taken_lets_go_of_it_without_a_word(loop: Loop) -> None:
    loop.plans = plans = HeldPlans(loop.troubles)
    plans.reached, plans.go = asyncio.Event(), asyncio.Event()
    run = loop.submit(**SHORT)
    stood_still = asyncio.create_task(loop.conduct(run))
    await plans.reached.wait()
    loop.store.held_by("another").take(run.id)
    plans.go.set()
    left = await stood_still
    assert (left.status, left.step, left.reason) == ("running", 0, "")
    assert not await loop.broker.exists(key("ended", run.id)), (
        "the other one's jobs would be dropped"
    )
    assert (await loop.conduct(run)).status == "finished"
    assert standing(loop, run) == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]


WRITES: dict[str, Callable[[RunStore, str], object]] = {
    "status": lambda store, run: store.status(run),
    "set_reason": lambda store, run: store.set_reason(run, "waiting"),
    "set_status": lambda store, run: store.set_status(run, "failed", "late"),
    "begin": lambda store, run: store.begin(run, state={}, versions={"policy": 9, "reward": 9}),
    "note": lambda store, run: store.note(run, "window", {}),
    "add_weights": lambda store, run: store.add_weights(run, "policy", 9, "uri", "digest"),
    "commit_step": lambda store, run: store.commit_step(
        RunStep(
            run_id=run, step=0, at=time.time(), policy_version=9, reward_version=9, metrics={}, artifacts={}
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_a_orchestrator_that_lost_its_run_writes_nothing(loop: Loop, write: str) -> None:
    run = loop.submit()
    first, second = loop.store.held_by("first"), loop.store.held_by("second")
    first.take(run.id)
    first.begin(
        run.id, state={"base": {"policy": 1, "reward": 1}}, versions={"policy": 1, "reward": 1}
    )
    second.take(run.id)
    before = loop.store.get(run.id)
    with pytest.raises(Superseded):
        WRITES[write](first, run.id)
    assert loop.store.get(run.id) == before
    assert loop.store.steps(run.id) == loop.store.weights_of(run.id) == []
    assert loop.store.run_state(run.id) == {"base": {"policy": 1, "reward": 1}}
    WRITES[write](second, run.id)
    WRITES[write](loop.store, run.id)  # an API that conducts nothing may write as before
