"""The Celery shell of the queue `rollout`."""

from __future__ import annotations

from typing import Any

from services.env_adapter.rollout import RolloutWorker
from triforge.errands import register
from triforge.messages import GroupTask
from triforge.queues import ROLLOUT_TASK, LoopThread


def register_rollout(app: Any, worker: RolloutWorker, loop: LoopThread) -> None:
    """Have a Celery app play groups. Errors: see `triforge.errands.register`."""
    register(app, ROLLOUT_TASK, GroupTask, worker.play, loop)
