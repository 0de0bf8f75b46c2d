"""Every queue, task and stream name, and the only package that speaks to Celery and Redis.

Celery carries jobs (ids and small numbers). Payloads lie in Redis under the group's id until the orchestrator has them
in the artifact store. Results travel on streams. Every write is first writer wins, so a job may be delivered twice.

    queue rollout   GroupTask     orchestrator   -> env_adapter
    queue judge     JudgeTask     env_adapter -> reward     (of a trajectory)
    queue judge     UnitTestTask  env_adapter -> reward     (of a group)
    queue adapt     TaskOutcome   orchestrator   -> env_adapter
    stream judged   group id      env_adapter, reward -> orchestrator
    stream batches  TrainBatch    orchestrator   -> learner of the role
    stream weights  WeightsReady  learner     -> orchestrator
    stream events   Event         every service  -> people
"""

from triforge.broker.broker import Broker, Taken, end_task
from triforge.broker.groups import unit_tests_id, unjudged
from triforge.broker.loop_pool import InLoop, failure
from triforge.broker.names import (
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
from triforge.broker.outcomes import outcome_job
from triforge.broker.sight import Seen
from triforge.broker.workers import LoopThread, celery_app, start_worker

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
    "Broker",
    "InLoop",
    "LoopThread",
    "Seen",
    "Taken",
    "batches_stream",
    "celery_app",
    "end_task",
    "failure",
    "outcome_job",
    "start_worker",
    "unit_tests_id",
    "unjudged",
]
