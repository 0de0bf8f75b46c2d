"""Runs whose playing is ahead of their training: what they train on, how stale it is, and what happens when they die."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.service.fake_loop import Loop, until
from triforge.event_loop import end_task
from triforge.types import GroupTask, RunState

AHEAD = {"steps": 4, "groups_per_step": 2, "eval_every": 0, "staleness_bound": 2}


@pytest.fixture
def prompt(loop: Loop) -> Loop:
    """A loop in which playing is faster than training: what was offered is played before the next weights are live."""
    for learner in loop.learners.values():
        learner.before = partial(loop.workers.idle, loop.troubles)
    return loop


def trained_in(loop: Loop, run: RunState) -> dict[int, list[str]]:
    """The groups of every training step, in order."""
    found: dict[int, list[str]] = {}
    for row in loop.records(run):
        groups = found.setdefault(row["step"], [])
        name = row["group_id"].removeprefix("run-")
        if name not in groups:
            groups.append(name)
    return found


def ages(loop: Loop, run: RunState) -> Counter[int]:
    """Trained responses by staleness: the version that a step trains is its number less one."""
    return Counter(
        row["step"] - 1 - version
        for row in loop.records(run)
        if not row["reason"]
        for version in row["policy_versions"]
    )


async def test_rounds_are_played_ahead_and_every_group_is_trained_on_once(prompt: Loop) -> None:
    run = prompt.submit(**AHEAD)
    state = await prompt.conduct(run)
    assert (state.status, state.reason) == ("finished", "")
    groups = trained_in(prompt, run)
    assert sorted(g for names in groups.values() for g in names) == [
        f"{round:05d}-train-{index:04d}" for round in (1, 2, 3, 4) for index in (0, 1)
    ]
    assert {len(names) for names in groups.values()} == {2}
    assert max(ages(prompt, run)) == 2
    metrics = [step.metrics for step in prompt.store.steps(run.id)][1:]
    assert [m["in_flight"] for m in metrics] == [6, 6, 4, 2]
    assert [m["staleness/policy/max"] for m in metrics] == [0, 1, 2, 2]
    assert await prompt.keys() == set()


async def test_a_slow_group_does_not_hold_up_the_steps_before_it_is_due(loop: Loop) -> None:
    """The first group comes only when two steps are done; the third one has to wait for it."""
    run = loop.submit(**AHEAD)
    slow = f"{run.id}-00001-train-0000"
    lost: list[str] = []

    def loses(task: GroupTask) -> bool:
        if task.group_id == slow:
            lost.append(slow)
        return task.group_id == slow

    loop.workers.loses = loses
    work = asyncio.create_task(loop.conduct(run))
    await until(lambda: loop.store.get(run.id).step == 2)
    lost.clear()
    await until(lambda: lost)  # it is sent again, and nothing else is taken
    assert loop.store.get(run.id).step == 2
    loop.workers.loses = lambda _: False
    assert (await work).status == "finished"
    assert slow.removeprefix(f"{run.id}-") in trained_in(loop, run)[3]
    assert max(ages(loop, run)) <= 2
    assert set(loop.workers.played.values()) == {1}


async def test_a_slow_group_is_not_waited_for_when_its_old_steps_may_be_masked(loop: Loop) -> None:
    run = loop.submit(**(AHEAD | {"late_groups": "mask", "staleness_bound": 1}))
    slow = f"{run.id}-00001-train-0000"
    loop.workers.delays = lambda task: task.group_id == slow
    work = asyncio.create_task(loop.conduct(run))
    await until(lambda: loop.store.get(run.id).step == 3)
    await loop.workers.release()
    assert (await work).status == "finished"
    reasons = {row["reason"] for row in loop.records(run) if slow[-16:] in row["group_id"]}
    assert reasons == {"stale weight version"}
    assert max(ages(loop, run)) <= 1


async def test_votes_of_an_older_judge_than_allowed_are_cast_again(prompt: Loop) -> None:
    run = prompt.submit(**(AHEAD | {"judge_staleness_bound": 1}))
    assert (await prompt.conduct(run)).status == "finished"
    rows = prompt.records(run)
    assert {row["step"] - 1 - version for row in rows for version in row["policy_versions"]} > {2}
    lags = {
        row["step"] - 1 - version
        for row in rows
        for vote in row["votes"]
        for version in vote["versions"]
    }
    assert max(lags) <= 1
    rejudged = [s.metrics.get("votes/rejudged", 0.0) for s in prompt.store.steps(run.id)]
    assert rejudged == [0, 0, 0, 4, 4]  # two rollouts of two groups, where they would be two old
    assert set(prompt.workers.played.values()) == {1}, "only the votes were cast again"


async def test_votes_of_an_older_judge_than_allowed_may_be_left_out(prompt: Loop) -> None:
    run = prompt.submit(**(AHEAD | {"judge_staleness_bound": 0, "stale_votes": "drop"}))
    assert (await prompt.conduct(run)).status == "finished"
    metrics = [step.metrics for step in prompt.store.steps(run.id)][1:]
    assert [m["groups/voteless"] for m in metrics] == [0, 2, 2, 0]
    # The judge waits for votes of its own; those of round 4 are the first that its new weights cast.
    assert [m["rows/reward"] > 0 for m in metrics] == [True, False, False, True]
    assert [m["rows/policy"] for m in metrics] == [4, 4, 4, 4]


async def test_a_small_pool_makes_small_steps_and_the_run_ends_all_the_same(loop: Loop) -> None:
    loop.plans.sizes = {1: 1, 2: 0, 3: 2, 4: 1}
    run = loop.submit(**AHEAD)
    assert (await loop.conduct(run)).status == "finished"
    sizes = {step: len(names) for step, names in trained_in(loop, run).items()}
    assert sizes == {1: 1, 3: 2, 4: 1}


async def test_pairs_on_top_are_played_by_one_version_and_trained_on_once_after_a_death_too(
    prompt: Loop,
) -> None:
    prompt.plans.proposal = "proposal-1"
    run = prompt.submit(**AHEAD)
    assert await prompt.killed(run, 60)
    assert (await prompt.conduct(run)).status == "finished"
    steps = trained_in(prompt, run)
    assert [len(names) for names in steps.values()] == [4] * 4
    assert sorted(name for names in steps.values() for name in names) == [
        f"{round:05d}-train-{index:04d}" for round in (1, 2, 3, 4) for index in range(4)
    ]
    assert {row["reason"] for row in prompt.records(run)} == {""}
    versions: dict[int, set[int]] = {}
    for heard in await prompt.adapted():
        if heard.proposal_id:
            versions.setdefault(heard.step, set()).add(heard.policy_version)
    assert len(versions) == 4
    assert {len(found) for found in versions.values()} == {1}


async def test_what_is_in_flight_is_played_afresh_when_another_run_has_served_in_between(
    loop: Loop,
) -> None:
    run = loop.submit(**AHEAD)
    loop.workers.loses = lambda task: task.group_id.endswith("00002-train-0001")
    work = asyncio.create_task(loop.orchestrator().run_forever())
    await until(lambda: loop.store.get(run.id).step == 2)
    loop.store.request_stop(run.id)
    await until(lambda: loop.store.status(run.id) == "stopped")
    await end_task(work)
    loop.workers.loses = lambda _: False
    await loop.conduct(loop.submit(steps=1, eval_every=0))
    loop.store.resume(run.id)
    assert (await loop.conduct(run)).status == "finished"
    assert sum(len(names) for names in trained_in(loop, run).values()) == 8
    assert {row["reason"] for row in loop.records(run)} == {""}


# ---- deaths ----


def _lasting(loop: Loop, run: RunState) -> dict[str, Any]:
    """Return the facts of a run that no crash of its orchestrator may change."""
    groups = trained_in(loop, run)
    names = [name for part in groups.values() for name in part]
    own = {key: n for key, n in loop.trained().items() if key[0] == run.id}
    return {
        "status": loop.store.get(run.id).status,
        "steps": [step.step for step in loop.store.steps(run.id)],
        "sizes": [len(part) for part in groups.values()],
        "groups": sorted(names),
        "trained": sorted(own.values()),
        "over the bound": max(ages(loop, run)) > 2,
        "in the future": min(ages(loop, run)) < 0,
        "reasons": {row["reason"] for row in loop.records(run)},
    }


@pytest.mark.parametrize("restarted", [False, True], ids=["orchestrator", "everything"])
async def test_no_death_anywhere_trains_a_group_twice_or_a_token_over_the_bound(
    loop: Loop, restarted: bool
) -> None:
    """The order in which groups come in is drawn anew for every run, so batches differ; what must hold does not."""
    clean = loop.submit(**AHEAD)
    loop.workers.shuffled = True
    await loop.conduct(clean)
    expected = _lasting(loop, clean)
    assert expected["trained"] == [1] * 8
    assert expected["reasons"] == {""}
    deaths = 0
    for place in range(5 if restarted else 1, 400, 29 if restarted else 17):
        run = loop.submit(**AHEAD)
        if not await loop.killed(run, place):
            break
        deaths += 1
        where = loop.troubles.visited[-1]
        for service in loop.services.values() if restarted else ():
            service.restart()
        pinned = (loop.store.run_state(run.id).get("window") or {}).get("training")
        step = loop.store.get(run.id).step + 1
        await loop.conduct(run)
        assert _lasting(loop, run) == expected, where
        if pinned:
            short = [name.removeprefix(f"{run.id}-") for name in pinned]
            assert trained_in(loop, run)[step] == short, f"{where}: another batch after the death"
    assert deaths > 5
