"""The rewards and ends of turns for a critic, whatever part of a trajectory is trained on."""

from __future__ import annotations

from typing import Any

import pytest

from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.learner.training_data import StepData
from tests.unit.trainer.played import CONTEXT, group_task, task_of, trajectory
from triforge.algorithms.algorithm import resolve
from triforge.types import JudgedGroup, Step, TrainRow, TrajectoryGroup

ROOMY = Limits(max_tokens=1000, max_rows=0, response=8)


def keep(
    *, lengths: list[int], change: Any = None, limits: Limits = ROOMY, **how: Any
) -> tuple[Samples, dict[str, TrainRow]]:
    """The samples of a group of a success and a failure, and its rows by key."""
    group = group_task("g", max_steps=len(lengths))
    segments, preset, overrides = how.pop("segments", None), how.pop("preset", "ppo"), how
    played = [
        trajectory(group, t, outcome=outcome, lengths=lengths, segments=segments)
        for t, outcome in enumerate((1, -1))
    ]
    if change:
        played = [t.model_copy(update={"steps": tuple(map(change, t.steps))}) for t in played]
    judged = JudgedGroup(
        played=TrajectoryGroup(group=group, task=task_of(group), trajectories=tuple(played)),
        votes=(None, None),
    )
    samples = build_samples(
        [judged], SampleOptions(algorithm=resolve(preset, overrides), players={"policy": (1, limits)},         judging={"reward": (1, ROOMY)}, seed=7))  # fmt: skip
    return samples, {row.key: row for row in samples.rows["policy"]}


def brought(row: TrainRow) -> dict[int, float]:
    """Return the rewards that are not 0, by place."""
    assert len(row.rewards) == len(row.ids)
    return {place: reward for place, reward in enumerate(row.rewards) if reward}


def test_the_outcome_stands_on_the_last_token_of_the_last_turn() -> None:
    samples, rows = keep(lengths=[3, 2])
    ends = (len(CONTEXT) + 2, 2 * len(CONTEXT) + 4)
    assert brought(rows["g-00/0"]) == {ends[1]: 1.0}
    assert brought(rows["g-01/0"]) == {}
    assert all(row.ends == ends and not any(row.advantages) for row in rows.values())
    assert [r["reward"] for r in samples.records] == [0.0, 1.0, 0.0, 0.0]
    assert samples.reasons == {"trained": 4}  # nothing is left out for being average


def test_each_turn_brings_its_own_penalty() -> None:
    def second_is_nonsense(step: Step) -> Step:
        return step.model_copy(update={"action_valid": step.index != 1})

    _, rows = keep(lengths=[1, 1, 1], change=second_is_nonsense, invalid_action_penalty=0.25)
    assert brought(rows["g-00/0"]) == {5: -0.25, 8: 1.0}
    assert brought(rows["g-01/0"]) == {5: -0.25}


def test_the_reward_of_a_turn_that_is_not_trained_on_falls_due_at_the_one_before_it() -> None:
    def last_is_cut_off(step: Step) -> Step:
        return step.model_copy(update={"finish": "length" if step.index == 2 else "stop"})

    samples, rows = keep(
        lengths=[1, 2, 3], change=last_is_cut_off, truncated="mask", step_cost=0.25
    )
    assert rows["g-00/0"].ends == (2, 6)
    assert brought(rows["g-00/0"]) == {2: -0.25, 6: 0.5}
    assert brought(rows["g-01/0"]) == {2: -0.25, 6: -0.5}
    assert samples.reasons == {"trained": 4, "truncated response": 2}


def test_what_was_brought_before_the_first_trained_turn_is_past() -> None:
    def first_is_cut_off(step: Step) -> Step:
        return step.model_copy(update={"finish": "length" if step.index == 0 else "stop"})

    _, rows = keep(lengths=[2, 2], change=first_is_cut_off, truncated="mask", step_cost=0.5)
    assert brought(rows["g-00/0"]) == {7: 0.5}


def test_a_trajectory_in_several_rows_is_one_sequence_in_the_order_it_was_written() -> None:
    _, rows = keep(lengths=[2, 1, 3], segments=[0, 1, 1])
    assert rows["g-00/0"].ends == (3,)
    assert rows["g-00/1"].ends == (2, 7)
    shuffled = [rows[key] for key in ("g-01/1", "g-00/1", "g-00/0", "g-01/0")]
    turns = StepData.from_rows(shuffled, max_tokens=99, vocabulary=999, version=1).turns
    assert turns is not None
    found = {tuple(cells): tuple(ends) for cells, ends in turns}
    assert found == {(10, 11, 0, 1, 2, 3): (1, 2, 5), (8, 9, 4, 5, 6, 7): (1, 2, 5)}
    assert [float(turns.rewards[list(cells)].sum()) for cells in found] == [0.0, 1.0]


def test_a_row_that_is_not_drawn_leaves_its_reward_to_the_rows_that_are() -> None:
    drawn = Limits(max_tokens=1000, max_rows=3, response=8)
    _, rows = keep(lengths=[1, 1], segments=[0, 1], limits=drawn, outcome="signed")
    assert len(rows) == 3
    total = {name: sum(sum(r.rewards) for k, r in rows.items() if k.startswith(name)) for name in ("g-00", "g-01")}  # fmt: skip
    assert total == {"g-00": 1.0, "g-01": -1.0}


@pytest.mark.parametrize("preset", ["grpo", "rlanything"])
def test_without_a_critic_rows_do_not_say_it(preset: str) -> None:
    samples, _ = keep(lengths=[2], preset=preset)
    assert all(row.rewards == row.ends == () for row in samples.rows["policy"])
