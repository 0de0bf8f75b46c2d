"""The names of all queues, tasks and streams."""

from __future__ import annotations

from typing import Final

from triforge.types import TrainedRole

ROLLOUT_QUEUE, JUDGE_QUEUE, ADAPT_QUEUE = "rollout", "judge", "adapt"
QUEUES = (ROLLOUT_QUEUE, JUDGE_QUEUE, ADAPT_QUEUE)
ROLLOUT_TASK, JUDGE_TASK, ADAPT_TASK = "triforge.rollout", "triforge.judge", "triforge.adapt"
UNIT_TEST_TASK = "triforge.unit_tests"
QUEUE_OF: Final = {
    ROLLOUT_TASK: ROLLOUT_QUEUE, JUDGE_TASK: JUDGE_QUEUE, UNIT_TEST_TASK: JUDGE_QUEUE, ADAPT_TASK: ADAPT_QUEUE,
}  # fmt: skip
JUDGED_STREAM, WEIGHTS_STREAM, EVENTS_STREAM = "tf:judged", "tf:weights", "tf:events"

SENT_AT = "triforge_sent_at"  # header of a job: when it was sent, in seconds since 1970


def batches_stream(role: TrainedRole) -> str:
    """The stream of one learner's batches."""
    return f"tf:batches:{role}"
