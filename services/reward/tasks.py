"""The Celery shell of the queue `judge`."""

from __future__ import annotations

from typing import Any

from services.reward.worker import JudgeWorker
from triforge.errands import register
from triforge.messages import JudgeTask
from triforge.queues import JUDGE_TASK, LoopThread


def register_judge(app: Any, worker: JudgeWorker, loop: LoopThread) -> None:
    """Have a Celery app judge trajectories. Errors: see `triforge.errands.register`."""
    register(app, JUDGE_TASK, JudgeTask, worker.judge, loop)
