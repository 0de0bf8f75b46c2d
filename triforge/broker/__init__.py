"""Everything in flight behind one protocol, `Broker`: jobs, leases, payloads, streams. The only package that imports redis or celery.

protocol  `Broker`: the operations of an implementation, and what all share
redis     on Redis or Valkey with Celery
memory    in one process
sessions  turns of agents in sessions
jobs      the work of a job and its retries
workers   the Celery worker
consumer  its connection to the server
"""

from triforge.broker.jobs import Job
from triforge.broker.memory import MemoryBroker
from triforge.broker.protocol import (
    ADAPT_QUEUE,
    ADAPT_TASK,
    EVENTS_STREAM,
    JUDGE_QUEUE,
    JUDGE_TASK,
    JUDGED_STREAM,
    QUEUES,
    ROLLOUT_QUEUE,
    ROLLOUT_TASK,
    WEIGHTS_STREAM,
    Broker,
    GroupStatus,
    JobClaim,
    Queued,
    batches_stream,
    group_judgement_id,
    outcome_job,
    unjudged,
)
from triforge.broker.redis import RedisBroker
from triforge.broker.sessions import SessionLog
from triforge.broker.workers import Worker, celery_app
