"""The conductor dies at every single place of a run, and another one goes on: same ledger, trained exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.service.fake_ring import Ring, ring_of
from tests.service.fragile import Killed
from triforge.messages import RunState
from triforge.queues import Wire

SHORT = {"steps": 1, "groups_per_step": 2, "eval_every": 1, "eval_greedy": False}
NEVER = 1_000_000


@pytest.fixture
async def ring(wire: Wire, redis_url: str, tmp_path: Path) -> AsyncIterator[Ring]:
    async with ring_of(wire, redis_url, tmp_path) as made:
        yield made


async def _killed(ring: Ring, run: RunState, place: int) -> bool:
    """Let a conductor take the run up and die at its `place`-th place; False if it came to the end before."""
    ring.troubles.kill_at(place)
    try:
        await ring.conduct(run)
    except Killed:
        return True
    ring.troubles.kill_at(NEVER)
    return False


def _lasting(ring: Ring, run: RunState) -> dict[str, Any]:
    """Everything about a run that must not depend on how often its conductor died."""
    base = ring.store.run_state(run.id)["base"]
    steps = ring.store.steps(run.id)
    return {
        "status": ring.store.get(run.id).status,
        "steps": [
            (s.step, s.policy_version - base["acts"], s.reward_version - base["judges"])
            for s in steps
        ],
        "eval": [s.metrics["eval/sampled"] for s in steps],
        "votes": ring.store.run_state(run.id)["votes"],
        "trained": sorted(
            (role, version - base[role], times)
            for (run_id, role, version), times in ring.trained().items()
            if run_id == run.id
        ),
        "ledger": ring.ledger(run),
    }


async def test_a_run_whose_conductor_dies_anywhere_ends_as_if_it_had_not(ring: Ring) -> None:
    clean = ring.submit(**SHORT)
    await ring.conduct(clean)
    expected = _lasting(ring, clean)
    assert expected["status"] == "finished"
    assert expected["steps"] == [(0, 0, 0), (1, 1, 1)]
    assert expected["trained"] == [("acts", 0, 1), ("judges", 0, 1)]
    assert {row["reason"] for row in expected["ledger"]} == {""}
    for place in count(1):
        run = ring.submit(**SHORT)
        died = await _killed(ring, run, place)
        where = ring.troubles.visited[-1] if died else "nowhere"
        await ring.conduct(run)
        assert _lasting(ring, run) == expected, where
        mine = {name: n for name, n in ring.workers.played.items() if name.startswith(run.id)}
        assert set(mine.values()) == {1}, f"{where}: a payload was forgotten before its commit"
        if not died:
            break
    assert place > 50


async def test_a_run_ends_the_same_when_everything_dies_with_its_conductor(ring: Ring) -> None:
    """The engines come up with the folders they start from, and workers play with them before the conductor is back."""
    clean = ring.submit(**SHORT)
    await ring.conduct(clean)
    expected = _lasting(ring, clean)
    for place in count(3, 3):
        run = ring.submit(**SHORT)
        died = await _killed(ring, run, place)
        where = ring.troubles.visited[-1] if died else "nowhere"
        for room in ring.rooms.values():
            room.restart()
        for errand in ring.workers.errands[-2:] if died else ():
            await ring.wire.send_rollout(errand)
        await ring.conduct(run)
        assert _lasting(ring, run) == expected, where
        if not died:
            break
    assert place > 50


async def test_nothing_is_left_in_redis_and_adaptation_hears_of_each_group_alike(
    ring: Ring,
) -> None:
    run = ring.submit(**SHORT)
    number = ring.troubles.visited
    assert await _killed(ring, run, NEVER) is False
    at = [i for i, place in enumerate(number, start=1) if place == "commit"]
    again = ring.submit(**SHORT)
    assert await _killed(ring, again, at[-1])  # before the commit: adaptation has heard already
    payloads = await ring.keys()
    assert {key.split(":")[2].split("-train-")[0] for key in payloads if ":group:" in key} >= {
        f"{again.id}-00001"
    }
    await ring.conduct(again)
    assert await ring.keys() == set()
    heard = [outcome for outcome in await ring.adapted() if outcome.run_id == again.id]
    assert len(heard) == 4  # two groups, twice
    assert {o.group_id: o for o in heard[:2]} == {o.group_id: o for o in heard[2:]}
    base = ring.store.run_state(again.id)["base"]
    assert {(o.successes, o.measured, o.policy_version) for o in heard} == {(1, 2, base["acts"])}


async def test_a_death_between_commit_and_tidying_costs_space_only(ring: Ring) -> None:
    run = ring.submit(**SHORT)
    await ring.conduct(run)
    place = ring.troubles.visited.index("forget") + 1
    again = ring.submit(**SHORT)
    assert await _killed(ring, again, place)
    assert ring.store.get(again.id).step == 0
    await ring.conduct(again)
    left = {key for key in await ring.keys() if ":group:" in key}
    assert left == {f"tf:group:{again.id}-00000-sampled-0000"}
    assert ring.store.get(again.id).status == "finished"


async def test_rows_of_a_step_whose_conductor_died_before_tidying_are_gone_with_the_run(
    ring: Ring,
) -> None:
    run = ring.submit(**SHORT)
    await ring.conduct(run)
    place = len(ring.troubles.visited) - ring.troubles.visited[::-1].index("committed")
    again = ring.submit(**SHORT)
    assert await _killed(ring, again, place)
    assert ring.store.get(again.id).step == 1
    assert ring.artifacts.exists(f"runs/{again.id}/batches/00001-acts.parquet")
    await ring.conduct(again)
    assert ring.store.get(again.id).status == "finished"
    assert not ring.artifacts.exists(f"runs/{again.id}/batches/00001-acts.parquet")
