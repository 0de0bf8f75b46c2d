"""The Celery shell of the queue `adapt`."""

from __future__ import annotations

from typing import Any

from services.env_adapter.adaptation.worker import AdaptWorker
from triforge.broker import ADAPT_TASK, LoopThread
from triforge.jobs import register
from triforge.types import TaskOutcome


def register_adapt(app: Any, worker: AdaptWorker, loop: LoopThread) -> None:
    """Have a Celery app handle outcomes. Errors: see `triforge.jobs.register`.

    The orchestrator goes on without waiting, so none is given up while a store refuses it. One that is lost with its worker is
    sent again by the others (`AdaptWorker.watch`).
    """
    register(app, ADAPT_TASK, TaskOutcome, worker.handle, loop, watched=False)
