"""The Celery shell of the queue `rollout`."""

from __future__ import annotations

from typing import Any

from services.env_adapter.rollout import RolloutWorker
from triforge.broker import ROLLOUT_TASK, LoopThread
from triforge.jobs import register
from triforge.types import GroupTask


def register_rollout(app: Any, worker: RolloutWorker, loop: LoopThread) -> None:
    """Have a Celery app play groups. Errors: see `triforge.jobs.register`."""
    register(app, ROLLOUT_TASK, GroupTask, worker.play, loop)
