"""The Celery shells of the queue `judge`."""

from __future__ import annotations

from typing import Any

from services.reward.unit_test_worker import UnitTestWorker
from services.reward.worker import JudgeWorker
from triforge.broker import JUDGE_TASK, UNIT_TEST_TASK, LoopThread
from triforge.jobs import register
from triforge.types import JudgeTask, UnitTestTask


def register_judge(app: Any, worker: JudgeWorker, loop: LoopThread) -> None:
    """Have a Celery app judge trajectories. Errors: see `triforge.jobs.register`."""
    register(app, JUDGE_TASK, JudgeTask, worker.judge, loop)


def register_unit_tests(app: Any, worker: UnitTestWorker, loop: LoopThread) -> None:
    """Have a Celery app write and run tests for groups. Errors: see `triforge.jobs.register`."""
    register(app, UNIT_TEST_TASK, UnitTestTask, worker.judge, loop)
