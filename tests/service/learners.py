"""A learner in this process, what it is asked to train, and what it answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.process import LearnerProcess
from tests.batches import train_batch
from triforge.broker import Broker
from triforge.errors import UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.types import TrainBatch, TrainedRole, TrainRow, WeightsReady

BASE = 2


def a_batch(
    store: ArtifactStore, model: Path, step: int = 1, run_id: str = "run", **settings: object
) -> TrainBatch:
    rows = [
        TrainRow(
            key=f"r{n}", ids=(6, 7, 6 + n % 3), logprobs=(0.0, -1.0, -1.0), advantages=(0.0, 1.0, -1.0),
            weights=(0.0, 0.125, 0.125), versions=(-1, BASE, BASE), task_id="t",
        )
        for n in range(4)
    ]  # fmt: skip
    uri = write_rows(store, f"runs/{run_id}/batches/{step:05d}-policy.parquet", rows)
    given: dict[str, Any] = {"learner": {"learning_rate": 1e-3}, **settings}
    return train_batch(
        model, batch_id=f"{run_id}-{step:05d}-policy", run_id=run_id, step=step,
        version=BASE + step - 1, base=BASE, uri=uri, num_rows=4, num_tokens=12, **given,
    )  # fmt: skip


class Brief:
    """A broker with short waits for a batch, so that a learner stops soon after it is asked to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def read_batches(self, role: TrainedRole, after: str, *, block_s: float) -> Any:
        return await self._broker.read_batches(role, after, block_s=0.05 * block_s)


@contextlib.asynccontextmanager
async def learning(
    broker: Broker, store: ArtifactStore, trainer: BatchTrainer | None = None
) -> AsyncIterator[LearnerProcess]:
    brief: Any = Brief(broker)
    loop = LearnerProcess(brief, store, "policy", trainer or BatchTrainer(store))
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        loop.stop()
        await asyncio.wait_for(task, 20)


async def answers(
    broker: Broker, count: int, after: str = "0", *, within_s: float = 60
) -> list[WeightsReady]:
    """The first `count` announcements after an entry; a server that does not answer is asked again, as everywhere."""
    async with asyncio.timeout(within_s):
        found: list[WeightsReady] = []
        while len(found) < count:
            with contextlib.suppress(UnavailableError):
                for entry, ready in await broker.read_weights(after, block_s=0.5):
                    after = entry
                    found.append(ready)
        return found
