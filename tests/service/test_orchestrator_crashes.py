"""The orchestrator dies at every single place of a run, and another one goes on: same ledger, trained exactly once."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.service.fake_loop import NEVER, Loop
from triforge.types import RunState

SHORT = {"steps": 1, "groups_per_step": 2, "eval_every": 1, "eval_greedy": False}


def _lasting(loop: Loop, run: RunState) -> dict[str, Any]:
    """Everything about a run that must not depend on how often its orchestrator died."""
    base = loop.store.run_state(run.id)["base"]
    steps = loop.store.steps(run.id)
    return {
        "status": loop.store.get(run.id).status,
        "steps": [
            (s.step, s.policy_version - base["policy"], s.reward_version - base["reward"])
            for s in steps
        ],
        "eval": [s.metrics["eval/sampled"] for s in steps],
        "votes": loop.store.run_state(run.id)["votes"],
        "trained": sorted(
            (role, version - base[role], times)
            for (run_id, role, version), times in loop.trained().items()
            if run_id == run.id
        ),
        "records": loop.records(run),
    }


async def test_a_run_whose_orchestrator_dies_anywhere_ends_as_if_it_had_not(loop: Loop) -> None:
    clean = loop.submit(**SHORT)
    await loop.conduct(clean)
    expected = _lasting(loop, clean)
    assert expected["status"] == "finished"
    assert expected["steps"] == [(0, 0, 0), (1, 1, 1)]
    assert expected["trained"] == [("policy", 0, 1), ("reward", 0, 1)]
    assert {row["reason"] for row in expected["records"]} == {""}
    for place in count(1):
        run = loop.submit(**SHORT)
        died = await loop.killed(run, place)
        where = loop.troubles.visited[-1] if died else "nowhere"
        await loop.conduct(run)
        assert _lasting(loop, run) == expected, where
        mine = {name: n for name, n in loop.workers.played.items() if name.startswith(run.id)}
        assert set(mine.values()) == {1}, f"{where}: a payload was forgotten before its commit"
        if not died:
            break
    assert place > 50


async def test_a_run_ends_the_same_when_everything_dies_with_its_orchestrator(loop: Loop) -> None:
    """The engines come up with the folders they start from, and workers play with them before the orchestrator is back."""
    clean = loop.submit(**SHORT)
    await loop.conduct(clean)
    expected = _lasting(loop, clean)
    for place in count(3, 3):
        run = loop.submit(**SHORT)
        died = await loop.killed(run, place)
        where = loop.troubles.visited[-1] if died else "nowhere"
        for service in loop.services.values():
            service.restart()
        for job in loop.workers.jobs[-2:] if died else ():
            await loop.broker.send(job)
        await loop.conduct(run)
        assert _lasting(loop, run) == expected, where
        if not died:
            break
    assert place > 50


async def test_nothing_is_left_in_redis_and_adaptation_hears_of_each_group_alike(
    loop: Loop,
) -> None:
    run = loop.submit(**SHORT)
    number = loop.troubles.visited
    assert await loop.killed(run, NEVER) is False
    at = [i for i, place in enumerate(number, start=1) if place == "commit"]
    again = loop.submit(**SHORT)
    assert await loop.killed(again, at[-1])  # before the commit: adaptation has heard already
    payloads = await loop.keys()
    assert {key.split(":")[2].split("-train-")[0] for key in payloads if ":group:" in key} >= {
        f"{again.id}-00001"
    }
    await loop.conduct(again)
    assert await loop.keys() == set()
    heard = [outcome for outcome in await loop.adapted() if outcome.run_id == again.id]
    assert len(heard) == 4  # two groups, twice
    assert {o.group_id: o for o in heard[:2]} == {o.group_id: o for o in heard[2:]}
    base = loop.store.run_state(again.id)["base"]
    assert {(o.successes, o.measured, o.policy_version) for o in heard} == {(1, 2, base["policy"])}


async def test_a_death_between_commit_and_tidying_costs_space_only(loop: Loop) -> None:
    run = loop.submit(**SHORT)
    await loop.conduct(run)
    place = loop.troubles.visited.index("forget") + 1
    again = loop.submit(**SHORT)
    assert await loop.killed(again, place)
    assert loop.store.get(again.id).step == 0
    await loop.conduct(again)
    left = {key for key in await loop.keys() if ":group:" in key}
    assert left == {f"tf:group:{again.id}-00000-sampled-0000"}
    assert loop.store.get(again.id).status == "finished"


async def test_rows_of_a_step_whose_orchestrator_died_before_tidying_are_gone_with_the_run(
    loop: Loop,
) -> None:
    run = loop.submit(**SHORT)
    await loop.conduct(run)
    place = len(loop.troubles.visited) - loop.troubles.visited[::-1].index("committed")
    again = loop.submit(**SHORT)
    assert await loop.killed(again, place)
    assert loop.store.get(again.id).step == 1
    assert loop.artifacts.exists(f"runs/{again.id}/batches/00001-policy.parquet")
    await loop.conduct(again)
    assert loop.store.get(again.id).status == "finished"
    assert not loop.artifacts.exists(f"runs/{again.id}/batches/00001-policy.parquet")
