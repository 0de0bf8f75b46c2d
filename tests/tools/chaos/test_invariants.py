"""Each promise of `chaos.invariants` is broken once, and only by what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chaos.evidence import Evidence, Folder
from chaos.invariants import ALWAYS, alike, dropped, emptied, learnt, shape

RUN = "run-1"
GROUPS = 2
METRICS = {"steps/trained": 4.0, "infrastructure_failures": 0.0, "rows/policy": 4.0, "rows/reward": 2.0}  # fmt: skip


def record(group: str, index: int, step: int, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": RUN, "step": step, "group_id": group, "trajectory_id": f"{group}-{index:02d}", "step_index": 0,
        "policy_versions": [step, step], "outcome": 1, "outcome_error": "", "successes": 1, "measured": 2, "weight": 1.0,
        "reason": "", "votes": [{"reason": "", "versions": [step]}], "file_step": step, **changes,
    }  # fmt: skip


def good() -> Evidence:
    names = {s: [f"{RUN}-{s:05d}-train-{g:04d}" for g in range(GROUPS)] for s in (1, 2)}
    records = [record(g, i, s) for s in (1, 2) for g in names[s] for i in (0, 1)]
    return Evidence(
        run={
            "id": RUN, "status": "finished", "step": 2, "reason": "",
            "config": {
                "run": {"steps": 2, "groups_per_step": GROUPS}, "env_adapter": {"rollouts": 2}, "reward": {"votes": 1},
                "adaptation": {"pairs_on_top": True}, "methods": {},
                "trainer": {side: {"epochs": 3, "updates_per_step": 2} for side in ("policy", "reward")},
            },
        },
        steps=[
            {
                "step": s, "policy_version": s + 1, "reward_version": s + 1, "artifacts": {}, "at": float(s),
                "metrics": METRICS if s else {},
            }
            for s in range(3)
        ],
        weights=[
            {"role": role, "version": v, "uri": "", "digest": "" if v == 1 else f"digest-{role}-{v}"}
            for role in ("policy", "reward") for v in (1, 2, 3)
        ],
        plans=[{"step": s, "groups": [{}] * GROUPS} for s in (1, 2)],
        measurements=[
            {"group_id": g, "successes": 1, "measured": 2} for s in (1, 2) for g in names[s]
        ],
        tasks=[
            {"id": "a", "slot": "a", "version": 0, "split": "train", "standing": "replaced", "position": 0},
            {"id": "a1", "slot": "a", "version": 1, "split": "train", "standing": "active", "position": 0},
            {"id": "b", "slot": "b", "version": 0, "split": "train", "standing": "active", "position": 1},
        ],
        proposals=[{"slot": "a", "standing": "accepted"}],
        records=records,
        folders=[
            Folder(role=role, version=v, digest=f"digest-{role}-{v}", wrong=(), step=v - 1, updates=6 * (v - 1))
            for role in ("policy", "reward") for v in (2, 3)
        ],
        batches=[],
        keys={f"tf:committed:{names[1][0]}": 3600},
        jobs=0,
        outcomes=0,
    )  # fmt: skip


def broken(found: Evidence) -> set[str]:
    return {name for name, check in ALWAYS.items() if check(found)}


def change(found: Evidence, place: int, **values: Any) -> Evidence:
    rows = [dict(row) for row in found.records]
    rows[place] |= values
    return replace(found, records=rows)


def step(found: Evidence, place: int, **values: Any) -> Evidence:
    rows = [dict(row) for row in found.steps]
    rows[place] |= values
    return replace(found, steps=rows)


FAULTS: dict[str, tuple[Callable[[Evidence], Evidence], set[str]]] = {
    "failed": (lambda e: replace(e, run=e.run | {"status": "failed"}), {"finished"}),
    "a step is lacking": (
        lambda e: replace(e, steps=e.steps[:-1], records=e.records[:4]),
        {"finished", "measured"},
    ),
    "a rollout is lacking": (
        lambda e: step(
            replace(e, records=e.records[1:]), 1, metrics=METRICS | {"steps/trained": 3.0}
        ),
        {"accounted"},
    ),
    "a failure that no rollout had": (
        lambda e: step(e, 1, metrics=METRICS | {"infrastructure_failures": 1.0}), {"accounted"},
    ),
    "a failure that is not counted": (lambda e: change(e, 0, outcome=None), {"accounted"}),
    "a group of another plan": (
        lambda e: replace(e, plans=[{**e.plans[0], "groups": [{}]}, e.plans[1]]),
        {"accounted", "alike"},
    ),
    "fewer groups than asked for": (
        lambda e: replace(e, run=e.run | {"config": e.run["config"] | {"run": {"steps": 2, "groups_per_step": 3}}}),
        {"alike"},
    ),
    "a step too far": (
        lambda e: step(e, 2, reward_version=4, policy_version=3), {"alike", "monotone"},
    ),
    "a task is gone": (lambda e: replace(e, tasks=e.tasks[:0]), {"kept"}),
    "a task of the middle is gone": (lambda e: replace(e, tasks=e.tasks[2:]), {"kept"}),
    "two versions are active": (
        lambda e: replace(e, tasks=[{**e.tasks[0], "standing": "active"}, *e.tasks[1:]]), {"kept"},
    ),
    "rewritten without a proposal": (lambda e: replace(e, proposals=[]), {"kept"}),
    "trained twice": (
        lambda e: step(
            replace(e, records=[*e.records, {**e.records[0], "file_step": 2, "policy_versions": [2], "votes": []}]),
            2, metrics=METRICS | {"steps/trained": 5.0},
        ),
        {"once"},
    ),
    "voted twice": (
        lambda e: change(e, 0, votes=[{"reason": "", "versions": [1]}] * 2), {"once"},
    ),
    "a batch trained twice": (
        lambda e: replace(e, folders=[*e.folders[:-1], replace(e.folders[-1], updates=18)]), {"learnt"},
    ),
    "a version of another step": (
        lambda e: replace(e, folders=[replace(e.folders[0], step=2), *e.folders[1:]]), {"learnt"},
    ),
    "a version without its checkpoint": (
        lambda e: replace(e, folders=[replace(e.folders[0], updates=-1), *e.folders[1:]]), {"learnt"},
    ),
    "older weights": (lambda e: change(e, 5, policy_versions=[1, 2]), {"unmixed"}),
    "older votes": (lambda e: change(e, 5, votes=[{"reason": "", "versions": [1]}]), {"unmixed"}),
    "left out in silence": (lambda e: change(e, 0, reason="stale"), {"explained"}),
    "versions go back": (
        lambda e: step(e, 2, policy_version=1),
        {"alike", "monotone"},
    ),
    "an unknown version": (lambda e: replace(e, weights=[w for w in e.weights if w["version"] != 3]), {"monotone"}),
    "a torn folder": (
        lambda e: replace(e, folders=[replace(e.folders[0], wrong=("torn",)), *e.folders[1:]]),
        {"whole"},
    ),
    "another digest": (
        lambda e: replace(e, folders=[replace(e.folders[0], digest="x"), *e.folders[1:]]),
        {"whole"},
    ),
    "the newest folder is gone": (lambda e: replace(e, folders=e.folders[:-1]), {"whole"}),
    "counted wrongly": (
        lambda e: replace(e, measurements=[{**e.measurements[0], "successes": 2}, *e.measurements[1:]]),
        {"measured"},
    ),
    "not done with": (lambda e: replace(e, outcomes=1), {"measured"}),
    "never counted": (lambda e: replace(e, measurements=e.measurements[1:]), {"measured"}),
    "for ever in Valkey": (lambda e: replace(e, keys={f"tf:group:{RUN}": -1}), {"tidied"}),
    "rows are left": (lambda e: replace(e, batches=["00001-policy.parquet"]), {"tidied"}),
}  # fmt: skip


def test_a_good_run_breaks_nothing() -> None:
    assert broken(good()) == set()
    assert emptied(good()) == []
    assert dropped(good()) == {}
    assert shape(good())["rollouts"] == 8


def test_pairs_come_in_addition_to_the_groups_of_the_plan() -> None:
    found, pair = good(), [{"proposal_id": "p"}] * 2
    assert (
        alike(replace(found, plans=[p | {"groups": pair + p["groups"]} for p in found.plans])) == []
    )
    assert alike(replace(found, plans=[p | {"groups": pair} for p in found.plans])) != []


def test_pairs_take_the_places_of_groups_where_the_run_asks_for_that() -> None:
    config = good().run["config"] | {"adaptation": {"pairs_on_top": False}}
    found, pair = replace(good(), run=good().run | {"config": config}), [{"proposal_id": "p"}] * 2
    assert alike(replace(found, plans=[p | {"groups": pair} for p in found.plans])) == []
    assert alike(replace(found, plans=[p | {"groups": pair + p["groups"]} for p in found.plans]))


def test_a_judge_that_the_method_audit_trains_moves_by_its_rows_and_not_by_those_of_votes() -> None:
    found = good()
    silent = [
        row | {"votes": [{"reason": "zero spread", "versions": [1]}]} for row in found.records
    ]
    found = replace(found, records=silent)
    assert alike(found) != []
    metrics = METRICS | {"audit/rows": 2.0}
    assert alike(replace(found, steps=[row | {"metrics": metrics} for row in found.steps])) == []


def test_a_judge_that_the_method_audit_trains_takes_its_updates() -> None:
    config = good().run["config"] | {"methods": {"audit": {"updates": 1}}}
    metrics = METRICS | {"audit/rows": 2.0}
    steps = [row | {"metrics": metrics} for row in good().steps]
    found = replace(good(), run=good().run | {"config": config}, steps=steps)
    assert learnt(found) != []
    mine = [f if f.role == "policy" else replace(f, updates=f.updates // 2) for f in found.folders]
    assert learnt(replace(found, folders=mine)) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_by_the_promise_that_it_breaks(fault: str) -> None:
    harm, expected = FAULTS[fault]
    assert broken(harm(good())) == expected


def test_a_rollout_without_a_step_is_accounted_for_by_the_count_of_failures() -> None:
    found = replace(good(), records=good().records[1:])
    metrics = METRICS | {"steps/trained": 3.0, "infrastructure_failures": 1.0}
    found = step(found, 1, metrics=metrics)
    assert broken(found) == set()
    assert dropped(found) == {"infrastructure failures": 1}


def test_payloads_and_jobs_that_are_left_break_an_undisturbed_run() -> None:
    assert emptied(replace(good(), keys={f"tf:votes:{RUN}": 60}))
    assert emptied(replace(good(), jobs=1))
