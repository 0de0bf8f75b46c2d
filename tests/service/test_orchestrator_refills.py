"""Groups that teach nothing are replaced by newly drawn ones, within a bound, after any crash."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.fake_loop import CONFIG, Loop
from triforge.types import RunState

ALIKE = ("00001-train-0000", "00001-refill1-0000")  # groups of step 1 whose rollouts all lose


@pytest.fixture(autouse=True)
def _alike(loop: Loop) -> None:
    loop.workers.alike = lambda task: task.group_id.endswith(ALIKE)


def submitted(loop: Loop, refills: int = 5, **run: Any) -> RunState:
    short = {"steps": 1, "groups_per_step": 2, "eval_every": 0} | run
    overrides = CONFIG["algorithm"]["overrides"] | {"refills": refills}
    return loop.submit_with({"run": short, "algorithm": {"overrides": overrides}})


async def test_a_group_that_teaches_nothing_is_replaced_until_the_step_has_its_groups(
    loop: Loop,
) -> None:
    run = submitted(loop)
    assert (await loop.conduct(run)).status == "finished"
    (_, step) = loop.store.steps(run.id)
    found = step.metrics
    assert (found["groups"], found["groups/dead"], found["groups/refilled"]) == (4, 2, 2)
    assert (found["groups/effective"], found["rows/policy"]) == (0.5, 4)
    names = {row["group_id"] for row in loop.records(run)}
    assert names == {
        f"run-00001-{name}" for name in ("train-0000", "train-0001", "refill1-0000", "refill2-0000")
    }
    heard = {o.group_id: o for o in await loop.adapted()}
    assert len(heard) == 4, "adaptation hears of every group that was played"
    assert {o.step for o in heard.values()} == {1}
    assert await loop.keys() == set()


async def test_a_step_trains_on_what_there_is_when_the_bound_or_the_pool_is_used_up(
    loop: Loop,
) -> None:
    loop.workers.alike = lambda task: not task.group_id.endswith("train-0001")
    for refills, left, played in ((3, 100, 5), (50, 0, 2), (0, 100, 2)):
        loop.plans.refills = left
        run = submitted(loop, refills)
        assert (await loop.conduct(run)).status == "finished"
        metrics = loop.store.steps(run.id)[-1].metrics
        assert (metrics["groups"], metrics["rows/policy"]) == (played, 2)


async def test_a_step_that_plays_ahead_is_filled_up_by_the_live_weights(loop: Loop) -> None:
    loop.workers.alike = lambda task: task.group_id.endswith("train-0000")
    run = submitted(loop, steps=3, staleness_bound=1)
    assert (await loop.conduct(run)).status == "finished"
    steps = loop.store.steps(run.id)[1:]
    assert [step.metrics["rows/policy"] for step in steps] == [4, 4, 4]
    dead = [step.metrics["groups/dead"] for step in steps]
    assert [step.metrics.get("groups/refilled", 0) for step in steps] == dead
    assert sum(dead) == 3
    refilled = [row for row in loop.records(run) if "-refill" in row["group_id"]]
    assert {(row["step"], *row["policy_versions"]) for row in refilled} <= {
        (step, step - 1) for step in (1, 2, 3)
    }


async def test_a_refilled_step_is_the_same_wherever_its_orchestrator_dies(loop: Loop) -> None:
    clean = submitted(loop)
    await loop.conduct(clean)
    expected, outcomes = loop.records(clean), await loop.adapted()
    visited = [*loop.troubles.visited]
    plans = [n for n, what in enumerate(visited, start=1) if what == "plan train"]
    assert len(plans) == 3, "of the step, and of two refills"
    for place in (*range(plans[1], plans[1] + 4), plans[2], plans[2] + 3, visited.index("commit")):
        run = submitted(loop)
        assert await loop.killed(run, place)
        where = loop.troubles.visited[-1]
        await loop.conduct(run)
        assert loop.records(run) == expected, where
        mine = {name: n for name, n in loop.workers.played.items() if name.startswith(run.id)}
        assert set(mine.values()) == {1}, f"{where}: a group was played twice"
        heard = {o.group_id for o in await loop.adapted() if o.run_id == run.id}
        assert len(heard) == len(outcomes), where


async def test_questions_about_a_step_train_the_policy_with_it_and_count_as_no_task(
    loop: Loop,
) -> None:
    loop.workers.alike = lambda _: False
    shared = {
        "run": {"steps": 1, "groups_per_step": 2, "eval_every": 1, "eval_tasks": 2},
        "methods": {"spark": {"questions": 1}},
        "algorithm": {"preset": "spark"},
    }
    run = loop.submit_with(shared)
    assert (await loop.conduct(run)).status == "finished"
    first, step = loop.store.steps(run.id)
    rows = loop.records(run)
    asked = {row["group_id"] for row in rows if row["purpose"] == "method"}
    assert len(asked) == 2, "one to judge and one to mend"
    assert {row["reason"] for row in rows if row["purpose"] == "method"} == {""}
    assert step.metrics["rows/policy"] == len({row["trajectory_id"] for row in rows}) == 8
    assert (step.metrics["trajectories"], step.metrics["groups/refilled"]) == (4, 0)
    assert step.metrics["recycled/reflection"] == 1
    assert {o.group_id for o in await loop.adapted()} == {
        f"{run.id}-00001-train-000{n}" for n in (0, 1)
    }
    assert {batch.role for batch in loop.learners["policy"].batches} == {"policy"}
    assert first.metrics["eval/judge"] == 1.0, (
        "two held-out rollouts are judged, and none is mended"
    )
    assert "eval/judge" in step.metrics
    assert await loop.keys() == set()
