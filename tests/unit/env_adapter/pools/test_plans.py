"""Plans: what a step plays, decided once, drawn without replacement."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.env_adapter.pools.changes import Change, Changes
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.rows import new_row
from services.env_adapter.pools.store import PoolStore
from tests.sections import plain_proposal
from triforge.errors import ConflictError, InputError, PausedError
from triforge.rollout.protocols import EnvironmentFamily
from triforge.store.database import Database
from triforge.store.tables import PlanRow, TaskRow
from triforge.types import PlannedGroup, PlanRequest, PoolRequest, PoolState, Split


def make_pool(
    database: Database,
    family: EnvironmentFamily,
    *,
    train: int = 6,
    heldout: int = 0,
    name: str = "p",
) -> PoolState:
    rows: list[tuple[str, Any]] = []
    splits: list[Split] = ["train"] * train + ["heldout"] * heldout
    for index, split in enumerate(splits):
        params = {"shelf": 1 + index % 8, "colour": ("red", "green", "blue")[index // 8]}
        rows.append((f"tasks[{index}]", {"params": params, "split": split}))
    maker = PoolMaker(database, lambda _: family)
    return maker.create(PoolRequest(name=name, environment="shelf"), rows)[0]


def ask(step: int, groups: int, *, kind: Any = "train", run_id: str = "r", **more: Any) -> Any:
    return PlanRequest(run_id=run_id, step=step, kind=kind, groups=groups, **more)


def make_pending(database: Database, pool: PoolState, slot: TaskRow, order: int = 0) -> str:
    proposal = plain_proposal(
        f"prop-{order}-{slot.id}",
        pool_id=pool.id,
        slot=slot.id,
        parent_id=slot.id,
        candidate_id=f"{slot.id}-v1",
    )
    with database.write() as session:
        candidate = TaskRow(
            id=f"{slot.id}-v1",
            pool_id=pool.id,
            slot=slot.id,
            version=1,
            parent_id=slot.id,
            split="train",
            state="pending",
            position=slot.position,
            instruction="",
            params={},
            created_at=0.0,
        )
        row = new_row(proposal)
        row.created_at = float(order)
        session.add_all([candidate, row])
    return proposal.id


def slots(database: Database, pool: PoolState) -> list[TaskRow]:
    with database.read() as session:
        found = [session.get_one(TaskRow, t.id) for t in tasks_of(database, pool)]
    return sorted(found, key=lambda row: row.position)


def tasks_of(database: Database, pool: PoolState) -> Any:
    return PoolStore(database).tasks(pool.id, split="train", state="active", limit=1000).items


def ids(groups: tuple[PlannedGroup, ...]) -> list[str]:
    return [group.task_id for group in groups]


def test_an_epoch_of_steps_plays_every_task_once_before_any_twice(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool, planner = make_pool(database, shelf_family, train=6), Planner(database)
    drawn = [task for step in range(4) for task in ids(planner.plan("p", ask(step, 3)).items)]
    everything = {task.id for task in tasks_of(database, pool)}
    assert set(drawn[:6]) == set(drawn[6:]) == everything
    assert drawn[:6] != drawn[6:]


def test_a_task_that_meets_itself_at_the_seam_of_two_epochs_waits(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family, train=5)
    planner = Planner(database)
    plans = [ids(planner.plan("p", ask(step, 4)).items) for step in range(20)]
    assert all(len(set(plan)) == 4 for plan in plans)
    played = Counter(task for plan in plans for task in plan)
    assert len(played) == 5
    assert max(played.values()) - min(played.values()) <= 4


def test_two_seeds_draw_in_two_orders_and_one_seed_in_one(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family, train=20)
    planner = Planner(database)
    first = planner.plan("p", ask(0, 20, seed=1, run_id="a"))
    same = planner.plan("p", ask(0, 20, seed=1, run_id="b"))
    other = planner.plan("p", ask(0, 20, seed=2, run_id="c"))
    assert ids(first.items) == ids(same.items) != ids(other.items)


def test_a_plan_is_decided_once_whatever_is_asked_later(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool, planner = make_pool(database, shelf_family), Planner(database)
    first = planner.plan("p", ask(0, 4))
    make_pending(database, pool, slots(database, pool)[0])
    assert planner.plan(pool.id, ask(0, 2, seed=5, max_pending=3)) == first


def test_planners_that_race_decide_once(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family)
    with ThreadPoolExecutor(8) as threads:
        seeds = range(8)
        plans = list(
            threads.map(lambda seed: Planner(database).plan("p", ask(0, 3, seed=seed)), seeds)
        )
    assert all(plan == plans[0] for plan in plans)
    with database.read() as session:
        assert session.query(PlanRow).count() == 1


def test_pending_proposals_are_measured_in_pairs_oldest_first_and_not_drawn(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool, planner = make_pool(database, shelf_family, train=5), Planner(database)
    first, second, third, *_ = slots(database, pool)
    newest = make_pending(database, pool, first, order=2)
    oldest = make_pending(database, pool, second, order=1)
    make_pending(database, pool, third, order=3)
    groups = planner.plan("p", ask(0, 6, max_pending=2)).items
    assert [(g.purpose, g.task_id, g.proposal_id) for g in groups[:4]] == [
        ("measure_parent", second.id, oldest),
        ("measure_candidate", f"{second.id}-v1", oldest),
        ("measure_parent", first.id, newest),
        ("measure_candidate", f"{first.id}-v1", newest),
    ]
    # Two of five slots are left to draw from: the third proposal waits unmeasured, and its slot is not drawn.
    rest = {row.id for row in slots(database, pool)[3:]}
    assert {g.task_id for g in groups[4:]} == rest
    assert {g.purpose for g in groups[4:]} == {"train"}


def test_a_run_that_measures_no_proposals_plays_pending_slots_like_any_other(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool = make_pool(database, shelf_family, train=3)
    for order, slot in enumerate(slots(database, pool)):
        make_pending(database, pool, slot, order)
    groups = Planner(database).plan("p", ask(0, 3)).items
    assert {group.purpose for group in groups} == {"train"}
    assert len(groups) == 3


def test_pairs_never_crowd_out_more_than_the_plan_holds(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool = make_pool(database, shelf_family)
    for order, slot in enumerate(slots(database, pool)[:3]):
        make_pending(database, pool, slot, order)
    asked = ask(0, 3, max_pending=9, pairs_on_top=False)
    groups = Planner(database).plan("p", asked).items
    assert [group.purpose for group in groups] == ["measure_parent", "measure_candidate", "train"]


def test_pairs_are_played_in_addition_to_the_groups_of_a_step_by_default(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool = make_pool(database, shelf_family, train=8)
    for order, slot in enumerate(slots(database, pool)[:2]):
        make_pending(database, pool, slot, order)
    planner = Planner(database)
    for step, on_top, train in ((0, True, 4), (1, False, 0)):
        wanted = ask(step, 4, max_pending=2, pairs_on_top=on_top)
        groups = planner.plan("p", wanted).items
        purposes = Counter(group.purpose for group in groups)
        assert purposes["measure_parent"] == purposes["measure_candidate"] == 2
        assert purposes["train"] == train
        assert len({group.task_id for group in groups}) == len(groups)
        # A resumed step plays the same, whatever the request holds or is pending by then.
        again = ask(step, 9, pairs_on_top=not on_top)
        assert planner.plan("p", again).items == groups


def test_a_small_pool_gives_fewer_groups_and_no_task_twice(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family, train=3)
    planner = Planner(database)
    for step in range(4):
        drawn = ids(planner.plan("p", ask(step, 8)).items)
        assert len(drawn) == len(set(drawn)) == 3


def test_evaluation_plays_the_first_heldout_tasks_at_every_step(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family, train=2, heldout=5)
    planner = Planner(database)
    first = planner.plan("p", ask(0, 3, kind="evaluate")).items
    later = planner.plan("p", ask(10, 3, kind="evaluate", seed=4)).items
    assert ids(first) == ids(later)
    assert [task[-2:] for task in ids(first)] == ["00", "01", "02"]
    assert {group.purpose for group in first} == {"evaluate"}


def test_a_pool_without_training_tasks_can_only_be_evaluated(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family, train=0, heldout=2)
    planner = Planner(database)
    assert len(planner.plan("p", ask(0, 3, kind="evaluate")).items) == 2
    with pytest.raises(InputError, match="no training tasks"):
        planner.plan("p", ask(0, 3))


def test_a_run_keeps_its_pool(database: Database, shelf_family: EnvironmentFamily) -> None:
    make_pool(database, shelf_family)
    make_pool(database, shelf_family, name="q")
    Planner(database).plan("p", ask(0, 2))
    with pytest.raises(ConflictError, match="keeps its pool"):
        Planner(database).plan("q", ask(0, 2))


def test_a_paused_pool_keeps_its_runs_waiting_but_not_the_step_that_is_under_way(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family)
    planner, changes = Planner(database), Changes(database)
    first = planner.plan("p", ask(0, 3))
    changes.set_pool("p", "pause", Change())
    assert planner.plan("p", ask(0, 3)) == first
    for kind in ("train", "evaluate"):
        with pytest.raises(PausedError, match="'p' is paused"):
            planner.plan("p", ask(1, 3, kind=kind))
    changes.set_pool("p", "resume", Change())
    assert len(planner.plan("p", ask(1, 3)).items) == 3


def test_a_retired_pool_is_not_planned_from(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    make_pool(database, shelf_family)
    Changes(database).set_pool("p", "retire", Change())
    with pytest.raises(ConflictError, match="'p' is retired"):
        Planner(database).plan("p", ask(0, 3))


def test_paused_and_retired_tasks_are_in_no_plan(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool = make_pool(database, shelf_family, train=6, heldout=2)
    first, second, *rest = slots(database, pool)
    held = PoolStore(database).tasks("p", split="heldout").items
    changes = Changes(database)
    changes.set_task(first.id, "pause", Change())
    changes.set_task(second.id, "retire", Change())
    changes.set_task(held[0].id, "pause", Change())
    planner = Planner(database)
    for step in range(3):
        assert set(ids(planner.plan("p", ask(step, 6)).items)) == {row.id for row in rest}
    assert ids(planner.plan("p", ask(0, 2, kind="evaluate")).items) == [held[1].id]


def test_the_few_tasks_that_are_left_of_many_are_found(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool = make_pool(database, shelf_family, train=24)
    *gone, last = slots(database, pool)
    with database.write() as session:
        for row in gone:
            session.get_one(TaskRow, row.id).state = "paused"
    planner = Planner(database)
    assert [ids(planner.plan("p", ask(step, 1)).items) for step in range(3)] == [[last.id]] * 3


def test_a_plan_that_would_be_empty_says_why(
    database: Database, shelf_family: EnvironmentFamily
) -> None:
    pool = make_pool(database, shelf_family, train=2)
    planner, changes = Planner(database), Changes(database)
    first, second = slots(database, pool)
    make_pending(database, pool, first)
    make_pending(database, pool, second)
    with pytest.raises(ConflictError, match=r"2 active, 2 pending; .*groups_per_step"):
        planner.plan("p", ask(0, 1, max_pending=2, pairs_on_top=False))
    assert len(planner.plan("p", ask(0, 2, max_pending=2)).items) == 4
    changes.set_task(first.id, "pause", Change())
    changes.set_task(second.id, "pause", Change())
    with pytest.raises(ConflictError, match="2 paused, 2 rejected"):
        planner.plan("p", ask(1, 2, max_pending=2))
