"""Every queue, task and stream name, and the only package that speaks to Celery and Redis.

Celery carries errands (ids and small numbers). Payloads lie in Redis under the group's id until the conductor has them
in the artifact store. Results travel on streams. Every write is first writer wins, so an errand may be delivered twice.

    queue rollout   GroupTask     conductor   -> env_adapter
    queue judge     JudgeTask     env_adapter -> reward     (of a trajectory)
    queue judge     UnitTestTask  env_adapter -> reward     (of a group)
    queue adapt     TaskOutcome   conductor   -> env_adapter
    stream judged   group id      env_adapter, reward -> conductor
    stream batches  TrainBatch    conductor   -> learner of the role
    stream weights  WeightsReady  learner     -> conductor
    stream events   Event         every room  -> people
"""

from triforge.queues.groups import unit_tests_id, unjudged
from triforge.queues.loop_pool import InLoop, failure
from triforge.queues.names import (
    ADAPT_QUEUE,
    ADAPT_TASK,
    EVENTS_STREAM,
    JUDGE_QUEUE,
    JUDGE_TASK,
    JUDGED_STREAM,
    QUEUES,
    ROLLOUT_QUEUE,
    ROLLOUT_TASK,
    UNIT_TEST_TASK,
    WEIGHTS_STREAM,
    batches_stream,
)
from triforge.queues.outcomes import outcome_errand
from triforge.queues.sight import Seen
from triforge.queues.wire import Taken, Wire, end_task
from triforge.queues.workers import LoopThread, celery_app, start_worker

__all__ = [
    "ADAPT_QUEUE",
    "ADAPT_TASK",
    "EVENTS_STREAM",
    "JUDGED_STREAM",
    "JUDGE_QUEUE",
    "JUDGE_TASK",
    "QUEUES",
    "ROLLOUT_QUEUE",
    "ROLLOUT_TASK",
    "UNIT_TEST_TASK",
    "WEIGHTS_STREAM",
    "InLoop",
    "LoopThread",
    "Seen",
    "Taken",
    "Wire",
    "batches_stream",
    "celery_app",
    "end_task",
    "failure",
    "outcome_errand",
    "start_worker",
    "unit_tests_id",
    "unjudged",
]
