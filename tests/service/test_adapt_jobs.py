"""The jobs of the queue `adapt` as Celery delivers them: handed over, and none lost while a store refuses it."""

from __future__ import annotations

from pathlib import Path

from services.env_adapter.adaptation.ledger import Ledger
from services.env_adapter.adaptation.worker import AdaptWorker
from services.env_adapter.pools import PoolMaker
from services.env_adapter.store import PoolStore
from services.env_adapter.tasks import register_adapt
from triforge.broker import ADAPT_TASK, LoopThread, celery_app
from triforge.environments import registry
from triforge.errors import StorageError, UnavailableError
from triforge.store.database import open_database
from triforge.types import GenerateSpec, PoolRequest, TaskOutcome


def outcome(pool_id: str = "p", task_id: str = "t") -> TaskOutcome:
    return TaskOutcome(
        group_id="g", run_id="r", step=0, pool_id=pool_id, task_id=task_id, purpose="train",
        successes=0, measured=8, rollouts=8, policy_version=0,
    )  # fmt: skip


def test_the_celery_shell_hands_the_outcome_over(redis_url: str) -> None:
    seen: list[TaskOutcome] = []

    class Stub(AdaptWorker):
        def __init__(self) -> None:
            pass

        async def handle(self, outcome: TaskOutcome) -> None:
            seen.append(outcome)

    app = celery_app(redis_url)
    register_adapt(app, Stub(), LoopThread())
    sent = outcome()
    app.tasks[ADAPT_TASK].apply(args=(sent.model_dump_json(),))
    app.close()
    assert seen == [sent]


def test_an_outcome_that_the_database_refuses_for_minutes_is_counted_all_the_same(
    redis_url: str, tmp_path: Path
) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.sqlite")
    request = PoolRequest(name="k", environment="household", generate=GenerateSpec(count=1))
    pool, _ = PoolMaker(database, registry.family).create(request, [])
    (task,) = PoolStore(database).tasks("k").tasks
    ledger, refusals = Ledger(database), 20

    class Refused(AdaptWorker):
        def __init__(self) -> None:
            pass

        async def handle(self, outcome: TaskOutcome) -> None:
            nonlocal refusals
            refusals -= 1
            if refusals > 0:
                raise StorageError("the disk is full") if refusals % 2 else UnavailableError("away")
            ledger.record(outcome)

    app = celery_app(redis_url)
    register_adapt(app, Refused(), LoopThread())
    app.tasks[ADAPT_TASK].apply(args=(outcome(pool.id, task.id).model_dump_json(),))
    app.close()
    assert refusals == 0
    assert len(PoolStore(database).detail(task.id).measurements) == 1
    database.close()
