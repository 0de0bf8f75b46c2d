"""The window of groups that trust is measured on."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from services.trainer.loop.measures import VoteHistory, alarm_measures, theory_measures, vote_counts
from services.trainer.loop.run_record import RunRecord
from tests.unit.trainer.played import group_task, judged
from triforge.algorithms.alarms import alarms
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.theory import GroupVotes, count_votes, trust

PRESET = resolve("rlanything", {"vote_weight": "trust", "trust_groups": 6})
GOOD = count_votes([1, -1], [[[1]], [[-1]]])
INVERTED = count_votes([1, -1], [[[-1]], [[1]]])


def memory(*steps: tuple[int, list[GroupVotes]]) -> tuple[VoteHistory, dict[str, Any]]:
    notes: dict[str, Any] = {"paths": {}}
    made = VoteHistory(notes, PRESET)
    for step, groups in steps:
        made.remember(step, groups)
    return made, notes


def test_a_step_is_weighed_by_the_steps_before_it() -> None:
    made, _ = memory((1, [GOOD] * 6))
    assert (made.trust(1), made.trust(2)) == (0.0, 1.0)


def test_a_restart_in_the_middle_of_a_step_changes_no_weight() -> None:
    made, notes = memory((1, [GOOD] * 6), (2, [INVERTED] * 6))
    again = VoteHistory(json.loads(json.dumps(notes)), PRESET)
    assert (again.trust(2), again.trust(3)) == (made.trust(2), made.trust(3)) == (1.0, 0.0)
    again.remember(2, [INVERTED] * 6)
    assert again.before(3) == [INVERTED] * 6


def test_only_the_latest_groups_count_and_older_ones_are_dropped() -> None:
    made, notes = memory(*[(step, [GOOD] * 4) for step in range(1, 9)])
    assert len(made.before(9)) == 6
    assert [step for step, _ in notes[VoteHistory.NOTE]] == [
        6,
        7,
        8,
    ]  # step 8's own weight needs 6 and 7
    assert notes["paths"] == {}


def test_groups_without_votes_are_not_remembered() -> None:
    made, notes = memory((1, [count_votes([1, -1], [[[]], [[]]])]))
    assert (notes[VoteHistory.NOTE], made.before(2), made.trust(2)) == ([[1, []]], [], 0.0)


def test_a_judge_that_is_being_gamed_is_trusted_as_far_as_the_newer_groups_say() -> None:
    preset = resolve("rlanything", {"vote_weight": "trust", "trust_groups": 128})
    fair = count_votes([1, 1, -1], [[[1]], [[1]], [[-1]]])
    kind = count_votes([1, 1, -1], [[[1]], [[1]], [[1]]])
    made = VoteHistory({}, preset)
    made.remember(1, [fair] * 64)
    assert (made.trust(2), alarm_measures(made.before(2))["judge/alarm"]) == (1.0, 0.0)
    made.remember(2, [kind, fair, fair] * 22)
    whole, newer = trust(made.before(3)), trust(made.before(3)[64:])
    assert made.trust(3) == newer < whole
    found = alarm_measures(made.before(3))
    assert found["judge/alarm"] == 1.0
    assert found["judge/alarm/agreement"] < -2.5 < 2.5 < found["judge/alarm/votes"]
    sentence = alarms(found)["J"]
    assert sentence.startswith("the judge is being gamed: ")
    assert f"agreement {found['judge/alarm/agreement']:+.1f}" in sentence
    assert alarms({"judge/invalid": 1.0})["J"].startswith("100% of the votes could not be read")
    assert alarms({"judge/invalid": 0.5}) == {}
    assert alarms({"judge/alarm": 0.0}) == alarms({}) == {}
    made.remember(3, [fair] * 128)
    assert (made.trust(4), alarm_measures(made.before(4))) == (1.0, {
        "judge/alarm": 0.0, "judge/alarm/agreement": 0.0, "judge/alarm/votes": 0.0,
    })  # fmt: skip


async def test_the_alarm_is_the_reason_of_the_run_and_part_of_the_event_of_its_step() -> None:
    store, committed = SimpleNamespace(), dict[str, Any]()
    store.commit_step = lambda record, notes, reason, lines: committed.update(reason=reason)

    async def emit(kind: str, run: str, **data: Any) -> None:
        committed.update(data)

    async def update() -> None:
        pass

    parts: Any = SimpleNamespace(store=store, emit=emit)
    run: Any = SimpleNamespace(id="run", pool_id="pool", config={}, by_trainer=False)
    dashboards: Any = SimpleNamespace(update=update)
    record = RunRecord(parts, run, dashboards)
    measures = {"judge/alarm": 1.0, "judge/alarm/votes": 4.0, "rows/policy": 8.0}
    await record.commit(1, {}, {"policy": 1, "reward": 1}, measures, {})
    assert committed["reason"] == committed["alarm"] == alarms(measures)["J"]
    assert "note" not in committed


def test_measures_name_every_estimate_with_its_interval() -> None:
    mixed = [judged(group_task(f"m{i}"), [1, -1], [[[1, 1]], [[-1, 1]]]) for i in range(5)]
    lost = judged(group_task("l"), [-1, -1], [[[-1, -1]], [[-1, -1]]])
    aside = judged(group_task("c", purpose="measure_candidate"), [1, 1], [[[1]], [[1]]])
    counts = vote_counts([*mixed, lost, aside], lam=1.0)
    found = theory_measures(counts)
    assert found["theory/groups"] == 6.0
    assert found["theory/one_sided"] == pytest.approx(1 / 6)
    assert found["theory/p_plus"] == 1.0
    assert found["theory/p_minus"] == pytest.approx(4.5 / 7)
    assert found["theory/mu_within"] == found["theory/mu_within/low"] == 1.5
    assert found["theory/mu/low"] < found["theory/mu"] < found["theory/mu/high"]
    assert theory_measures([]) == {}
