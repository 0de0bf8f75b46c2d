"""Audited rollouts: who is audited, what the judge is to say, and what is measured of its votes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from methods.audit.labelled import answers, audited, errors, rows, scaled
from tests.unit.trainer.played import group_task, judged, task_of, trajectory, votes_on
from triforge.algorithms.judge_targets.label import draw
from triforge.types import JudgedGroup, TrajectoryGroup


def group(
    name: str,
    outcomes: Sequence[int],
    labels: Sequence[Sequence[int | None]],
    votes: Sequence[Sequence[Sequence[int]]],
    *,
    prompt: str = "terse",
) -> JudgedGroup:
    task = group_task(name)
    reward = task.reward.model_copy(update={"prompt": prompt})
    task = task.model_copy(update={"reward": reward})
    played = tuple(
        trajectory(task, n, outcome=outcome, lengths=[1] * len(labels[n]), labels=labels[n])
        for n, outcome in enumerate(outcomes)
    )
    cast = tuple(votes_on(t, row) for t, row in zip(played, votes, strict=True))
    whole = TrajectoryGroup(group=task, task=task_of(task), trajectories=played)
    return JudgedGroup(played=whole, votes=cast)


def test_rollouts_are_audited_by_lot_and_anchors_are_some_of_them() -> None:
    groups = [group(f"g{n}", [1, -1], [[1], [-1]], [[[1]], [[1]]]) for n in range(1000)]
    found = audited(groups, share=0.1, anchors=0.25)
    assert 150 < len(found) < 250
    assert 25 < sum(one.anchor for one in found) < 75
    names = {one.trajectory.id for one in found}
    assert names == {one.trajectory.id for one in audited(groups, share=0.1, anchors=0.0)}
    assert names < {one.trajectory.id for one in audited(groups, share=0.2, anchors=0.25)}
    assert max(map(draw, names)) < 0.1


def test_rollouts_without_labels_or_votes_or_outcome_are_not_audited() -> None:
    plain = judged(group_task(), [1, None], [[[1, 1]], [[1, 1]]])
    assert audited([plain], share=1.0, anchors=0.0) == []
    assert audited([group("g", [1], [[None]], [[[1]]])], share=1.0, anchors=0.0) == []


def test_the_judge_is_to_say_what_is_right_in_words_of_its_own_or_of_another_vote() -> None:
    found = group("g", [-1], [[1, -1, None]], [[[1, -1], [1, 1], [1, 1]]])
    known = {1: (7,), -1: (8, 9)}
    first, second = rows(audited([found], share=1.0, anchors=0.0), known)
    assert (first.ids[-2:], first.weights[-2:]) == ((1, 2), (0.5, 0.5)), "its own vote of +1"
    assert second.ids[-2:] == (8, 9), "both of its votes are wrong"
    assert first.weights[:-2] == (0.0,) * 3
    assert rows(audited([found], share=1.0, anchors=0.0), {}) == [first]
    assert sum(map(sum, (row.weights for row in scaled([first, second])))) == pytest.approx(1.0)


def test_only_bare_votes_stand_for_each_other() -> None:
    votes = [[[1], [-1]]]
    assert answers([group("g", [1], [[1, 1]], votes)]) == {1: (1, 2), -1: (1, 2)}
    assert answers([group("g", [1], [[1, 1]], votes, prompt="rubric")]) == {}


def test_errors_are_measured_by_side_by_kind_of_action_and_in_failures() -> None:
    labels, votes = [[1, 1, -1], [-1, -1, 1]], [[[1], [-1], [-1]], [[1], [-1], [1]]]
    found = audited([group("g", [1, -1], labels, votes)], share=1.0, anchors=0.0)
    measures = errors(found)
    assert measures["audit/right"] == pytest.approx(4 / 6)
    assert measures["audit/balanced"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert measures["audit/praise_in_failures"] == 0.5, "one of two wrong steps of the failure"
    assert measures["audit/wrong/a0"] == 0.5
    assert not any(name.startswith("audit/wrong_in/") for name in measures), "a task of no kind"
    assert errors([]) == {}


def test_errors_are_measured_by_kind_of_task() -> None:
    def of_kind(kind: str, votes: list[list[list[int]]]) -> JudgedGroup:
        made = group(f"g-{kind}", [1], [[1, -1]], votes)
        task = made.played.task.model_copy(update={"kind": kind})
        return made.model_copy(update={"played": made.played.model_copy(update={"task": task})})

    groups = [of_kind("heat", [[[1], [1]]]), of_kind("cool", [[[1], [-1]]])]
    measures = errors(audited(groups, share=1.0, anchors=0.0))
    assert (measures["audit/wrong_in/heat"], measures["audit/wrong_in/cool"]) == (0.5, 0.0)
