"""The judge's jobs of a group: they follow from it, so whoever misses one can send it again."""

from __future__ import annotations

from triforge.rollout.episode import trajectory_id
from triforge.rollout.seeds import derive_seed
from triforge.types import GroupTask, JudgeTask, UnitTestTask


def judge_task(group: GroupTask, index: int) -> JudgeTask:
    """The job on rollout `index` of a group that is judged by votes; the same every time."""
    return JudgeTask(
        trajectory_id=trajectory_id(group.group_id, index),
        group_id=group.group_id,
        run_id=group.run_id,
        votes=group.votes,
        seed=derive_seed(group.seed, "judge", index),
        sampling=group.judge_sampling,
        deadline_s=group.judge_deadline_s,
        prompt=group.judge_prompt,
    )


def unit_test_task(group: GroupTask) -> UnitTestTask:
    """The job on a group that is judged by tests; the same every time."""
    return UnitTestTask(
        group_id=group.group_id,
        run_id=group.run_id,
        tests=group.votes,
        seed=derive_seed(group.seed, "judge"),
        sampling=group.judge_sampling,
        deadline_s=group.judge_deadline_s,
    )
