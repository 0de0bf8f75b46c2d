"""The Celery shell of the queue `adapt`."""

from __future__ import annotations

from typing import Any

from services.env_adapter.adaptation.worker import AdaptWorker
from triforge.errands import register
from triforge.messages import TaskOutcome
from triforge.queues import ADAPT_TASK, LoopThread


def register_adapt(app: Any, worker: AdaptWorker, loop: LoopThread) -> None:
    """Have a Celery app handle outcomes. Errors: see `triforge.errands.register`.

    The conductor goes on without waiting, so none is given up while a store refuses it. One that is lost with its worker is
    sent again by the others (`AdaptWorker.watch`).
    """
    register(app, ADAPT_TASK, TaskOutcome, worker.handle, loop, watched=False)
