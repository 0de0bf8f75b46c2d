"""Measures of policy, judge and tasks, checked by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.trainer.loop.measures import (
    entropy_share,
    failures,
    judge_measures,
    step_measures,
    success_rate,
)
from services.trainer.loop.task_source import diagnosis_notes
from tests.unit.trainer.played import group_task, judged, scored, task_of, trajectory, votes_on
from triforge.config import parse
from triforge.environments.trainable import demand_known_success
from triforge.errors import ConfigError
from triforge.types import ErrorInfo, JudgedGroup, Outcome, TrajectoryGroup

MODELS = {"models": {"policy": {"path": "/models/p"}, "reward": {"path": "/models/r"}}}


def measures(*groups: JudgedGroup) -> dict[str, float]:
    return step_measures(groups, alpha_low=0.2, alpha_high=0.8)


def labelled(labels: list[int], values: list[list[int]]) -> JudgedGroup:
    """One won rollout whose steps the environment calls good or bad, with the votes on them."""
    group = group_task(rollouts=1)
    played = trajectory(group, 0, outcome=1, lengths=[1] * len(labels), labels=labels)
    whole = TrajectoryGroup(group=group, task=task_of(group), trajectories=(played,))
    return JudgedGroup(played=whole, votes=(votes_on(played, values),))


def test_rates_count_measured_rollouts_only() -> None:
    group = judged(group_task(rollouts=4), [1, -1, -1, None], [[[]], [[], []], [[]], [[]]])
    found = measures(group)
    assert (found["groups"], found["trajectories"]) == (1.0, 4.0)
    assert found["success"] == pytest.approx(1 / 3)
    assert found["infrastructure_failures"] == 1.0
    assert found["length"] == pytest.approx(4 / 3)


def test_scores_have_a_mean_in_addition_to_success_and_a_group_is_alike_when_they_are() -> None:
    def group(name: str, *scores: float) -> JudgedGroup:
        won = [1 if score >= 0.5 else -1 for score in scores]
        return scored(
            judged(group_task(name, rollouts=len(scores)), won, [[[]]] * len(scores)), scores
        )

    found = measures(group("a", 0.25, 0.5), group("b", 0.0, 0.25), group("c", 0.5, 0.5))
    assert found["score"] == pytest.approx(1 / 3)
    assert found["success"] == 0.5
    assert found["all_same"] == pytest.approx(1 / 3)
    assert "score" not in measures(judged(group_task(rollouts=1), [1], [[[]]]))


def test_without_a_threshold_there_are_scores_and_no_success() -> None:
    group = scored(judged(group_task(rollouts=2), [None, None], [[[]], [[]]]), [0.5, 1.0])
    found = measures(group)
    assert (found["score"], found["infrastructure_failures"]) == (0.75, 0.0)
    assert not found.keys() & {"success", "in_band"}
    config = {"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}}
    demand_known_success(parse(MODELS | config), [group])
    with pytest.raises(ConfigError, match=r"algorithm 'rlanything'.*given for 'fake'"):
        demand_known_success(parse(MODELS), [group])


def test_the_band_is_inclusive_and_counts_groups() -> None:
    def group(name: str, wins: int, of: int) -> JudgedGroup:
        outcomes = [1] * wins + [-1] * (of - wins)
        return judged(group_task(name, rollouts=of), outcomes, [[[]]] * of)

    found = measures(group("a", 1, 5), group("b", 4, 5), group("c", 0, 5), group("d", 5, 5))
    assert (found["in_band"], found["all_same"], found["success"]) == (0.5, 0.5, 0.5)


def test_rates_have_intervals_over_groups_because_rollouts_of_a_task_are_alike() -> None:
    def group(number: int) -> JudgedGroup:
        outcomes = [1 if number % 2 else -1] * 8
        return judged(group_task(str(number), rollouts=8), outcomes, [[[]]] * 8)

    found = measures(*map(group, range(16)))
    low, high = found["success/low"], found["success/high"]
    assert (low, high) == pytest.approx((0.26, 0.74), abs=0.01)  # 128 rollouts: 0.41 to 0.59
    assert (found["all_same/low"], found["all_same/high"]) == pytest.approx((0.806, 1.0), abs=1e-3)
    votes = judge_measures([labelled([1, 1, -1], [[1], [right], [-1]]) for right in (1, -1) * 8])
    assert votes["judge/balanced"] == 0.875
    assert 0.7 < votes["judge/balanced/low"] < 0.875 < votes["judge/balanced/high"] < 1.0
    assert votes["judge/accuracy/low"] < votes["judge/accuracy"] < votes["judge/accuracy/high"]


def test_candidates_and_evaluations_count_in_no_rate() -> None:
    def lost(purpose: str) -> JudgedGroup:
        return judged(group_task(purpose, purpose=purpose, rollouts=1), [-1], [[[1]]])

    won = judged(group_task("t", rollouts=1), [1], [[[1]]])
    found = measures(won, lost("measure_candidate"), lost("evaluate"))
    assert (found["groups"], found["trajectories"], found["success"]) == (3.0, 1.0, 1.0)
    assert found["judge/votes"] == 1.0


def test_what_cannot_be_measured_is_left_out() -> None:
    broken = judged(group_task(rollouts=2), [None, None], [[], []])
    found = measures(broken)
    assert found == {
        "groups": 1.0,
        "trajectories": 2.0,
        "infrastructure_failures": 2.0,
        "failures/environment": 2.0,
        "retries": 0.0,
        "tokens": 0.0,
    }
    assert measures() == {
        "groups": 0.0,
        "trajectories": 0.0,
        "infrastructure_failures": 0.0,
        "retries": 0.0,
        "tokens": 0.0,
    }
    assert success_rate([broken]) == (0, 0)


def test_lost_episodes_are_counted_by_what_raised() -> None:
    broken = judged(group_task(rollouts=3), [None, None, 1], [[], [], []])
    raised = ErrorInfo(kind="environment", detail="x", raised="KeyError at a.py:1")
    first = broken.played.trajectories[0]
    first = first.model_copy(update={"outcome": Outcome(value=None, error=raised)})
    played = broken.played.model_copy(
        update={"trajectories": (first, *broken.played.trajectories[1:])}
    )
    found = failures("failures", [broken.model_copy(update={"played": played})] * 2)
    assert found == {"failures/KeyError at a.py:1": 2.0, "failures/environment": 2.0}


def test_balanced_accuracy_does_not_reward_a_constant_answer() -> None:
    constant = judge_measures([labelled([1, 1, 1, -1], [[1], [1], [1], [1]])])
    assert constant["judge/accuracy"] == constant["judge/constant"] == 0.75
    assert constant["judge/balanced"] == 0.5
    right = judge_measures([labelled([1, 1, 1, -1], [[1], [1], [1], [-1]])])
    assert (right["judge/accuracy"], right["judge/balanced"]) == (1.0, 1.0)


def test_invalid_votes_are_counted_and_kept_out_of_every_accuracy() -> None:
    found = judge_measures([labelled([1, -1], [[1, 0], [0, 0]])])
    assert (found["judge/votes"], found["judge/invalid"]) == (4.0, 0.75)
    assert (found["judge/accuracy"], found["judge/positive"]) == (1.0, 1.0)
    assert "judge/balanced" not in found  # no valid vote on a bad step
    assert judge_measures([labelled([1], [[0]])]) == {"judge/votes": 1.0, "judge/invalid": 1.0}
    assert judge_measures([labelled([1], [[]])]) == {}


def test_votes_are_compared_with_the_outcome_of_their_rollout() -> None:
    group = judged(group_task(), [1, -1], [[[1, -1]], [[1, -1]]])
    assert judge_measures([group])["judge/outcome"] == 0.5
    assert "judge/accuracy" not in judge_measures([group])  # the environment labels no step here


def test_votes_are_held_against_the_other_steps_of_the_same_task_and_index() -> None:
    def group(labels: list[list[int | None]], values: list[list[list[int]]]) -> JudgedGroup:
        asked = group_task(rollouts=len(labels))
        played = [
            trajectory(asked, i, outcome=1 if i else -1, lengths=[1] * len(row), labels=row)
            for i, row in enumerate(labels)
        ]
        whole = TrajectoryGroup(group=asked, task=task_of(asked), trajectories=tuple(played))
        votes = tuple(votes_on(t, row) for t, row in zip(played, values, strict=True))
        return JudgedGroup(played=whole, votes=votes)

    # A judge that knows which index is good and not which action: right between states, at chance within.
    between = group([[1, -1], [1, -1], [-1, 1]], [[[1, 1], [-1, -1]]] * 3)
    found = judge_measures([between])
    assert found["judge/accuracy"] == pytest.approx(4 / 6)
    assert (found["judge/within_label"], found["judge/within_outcome"]) == (0.5, 0.5)
    assert (found["judge/unanimous"], found["judge/entropy"]) == (1.0, 1.0)
    # Index 0: +1 above 0 of the bad one; index 1: no pair of labels; outcomes: -1 of the first, +1 of the second.
    within = group([[1, None], [-1, 1]], [[[1, 1], [1]], [[1, -1], [-1]]])
    found = judge_measures([within])
    assert (found["judge/within_label"], found["judge/within_outcome"]) == (1.0, 0.0)
    assert found["judge/unanimous"] == 0.5
    assert found["judge/entropy"] == pytest.approx(0.9183, abs=1e-4)  # 4 of 6 votes are +1
    both = judge_measures([between, within])
    assert both["judge/within_label"] == pytest.approx((2.0 + 1.0) / (4 + 1))
    assert both["judge/within_label/low"] < 0.6 < both["judge/within_label/high"]
    assert judge_measures([group([[1], [1]], [[[1]], [[1]]])])["judge/entropy"] == 0.0
    assert "judge/within_label" not in judge_measures([group([[1], [1]], [[[1]], [[-1]]])])


def test_the_notes_of_a_group_are_its_measured_rollouts_with_their_votes() -> None:
    group = judged(
        group_task(rollouts=5),
        [1, -1, 1, None, -1],
        [[[1], [1]], [[-1]], [[1]], [[1]], [[0, -1]]],
    )
    notes = diagnosis_notes(group)
    assert [(note.trajectory_id, note.success) for note in notes] == [
        ("g-00", True),
        ("g-01", False),
        ("g-02", True),
        ("g-04", False),
    ]
    assert [(step, len(texts)) for step, texts in notes[3].judged] == [(0, 2)]
    assert notes[3].steps == (("a0", "o1", (0, -1)),)
    assert notes[2].judged == ()
    silent = group.model_copy(update={"votes": (None,) * 5})
    assert diagnosis_notes(silent)[3].steps == (("a0", "o1", ()),)


def test_an_agents_own_metrics_have_means_over_those_that_gave_them() -> None:
    group = judged(group_task(rollouts=3), [1, -1, None], [[[]], [[]], [[]]])
    given: list[dict[str, float]] = [{"turns": 2.0, "read": 1.0}, {"turns": 5.0}, {"turns": 9.0}]
    played = [
        one.model_copy(update={"outcome": one.outcome.model_copy(update={"metrics": own})})
        for one, own in zip(group.played.trajectories, given, strict=True)
    ]
    whole = group.played.model_copy(update={"trajectories": tuple(played)})
    found = measures(group.model_copy(update={"played": whole}))
    assert (found["metric/turns"], found["metric/read"]) == (3.5, 1.0)


def test_entropy_is_a_share_of_that_of_the_first_trained_step_across_restarts() -> None:
    notes: dict[str, Any] = {}
    assert entropy_share(notes, {"success": 0.5}) == {}
    assert entropy_share(notes, {"policy/entropy": 0.4}) == {"policy/entropy_share": 1.0}
    notes = json.loads(json.dumps(notes))
    assert entropy_share(notes, {"policy/entropy": 0.1}) == {"policy/entropy_share": 0.25}
    assert entropy_share({}, {"policy/entropy": 0.0}) == {}
