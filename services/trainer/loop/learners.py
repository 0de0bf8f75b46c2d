"""The loop's side of the learners: write rows, announce one batch a model, wait for the new weight versions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.trainer.credit.batches import batch_of
from services.trainer.loop.parts import Parts
from services.trainer.runs.rollback import Versions
from triforge.broker import WEIGHTS_STREAM
from triforge.config import RunConfig
from triforge.errors import TrainerError
from triforge.store.rows import write_rows
from triforge.store.weight_folders import version_name
from triforge.types import TrainBatch, TrainedRole, TrainRow, WeightsReady, WeightVersion

log = logging.getLogger(__name__)

_BLOCK_S = 0.5

Change = Callable[[int, TrainBatch], Awaitable[TrainBatch]]


@dataclass(frozen=True, slots=True)
class Trained:
    """A new version with its learner's report, and the seconds it took.

    `origin` is the older version that it was trained from; None if it follows the last one.
    """

    ready: WeightsReady
    seconds: float
    origin: int | None = None


class Learners:
    """The learners of one run.

    `notes` are the orchestrator's on the run: `paths`, the initial folders, and `base`, their versions, and `best`, those of the best
    evaluation, which stay on the disk. `check` is awaited
    regularly and raises to abandon the wait (stop requested).
    """

    def __init__(
        self,
        parts: Parts,
        run_id: str,
        config: RunConfig,
        notes: Mapping[str, Any],
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts, self._run_id, self._config = parts, run_id, config
        self._notes, self._check = notes, check
        self._written: list[str] = []

    async def train(
        self,
        step: int,
        rows: Mapping[TrainedRole, list[TrainRow]],
        versions: Mapping[TrainedRole, int],
        change: Change,
    ) -> dict[TrainedRole, Trained]:
        """Train each model on its rows, at the same time or with `run.colocate` in turns. A model without rows is not trained.

        `change` returns each batch as its learner is to read it.

        A learner trains on `versions` and writes the next ones. A learner that has done so already announces them again, so
        nothing is trained twice.

        Raises:
            TrainerError: a learner failed, or did not answer within `run.step_deadline_s`.
        """
        batches = []
        for role, part in rows.items():
            if part:
                batch = await self._batch(role, step, part, versions[role])
                batches.append(await change(step, batch))
        if not self._config.run.colocate:
            return await self.announce(batches)
        trained: dict[TrainedRole, Trained] = {}
        for batch in batches:  # one learner at a time has the card
            trained |= await self.announce([batch])
        return trained

    async def discard(self) -> None:
        """Delete the rows of the committed step."""
        while self._written:
            await asyncio.to_thread(self._parts.artifacts.delete, self._written.pop())

    async def announce(self, batches: list[TrainBatch]) -> dict[TrainedRole, Trained]:
        """Announce batches and wait for the weights of all. Errors: see `train`."""
        broker, deadline_s = self._parts.broker, self._config.run.step_deadline_s
        cursor, started = await broker.last_id(WEIGHTS_STREAM), time.monotonic()
        for announced in batches:
            await broker.announce(announced)
        waiting = {announced.role: announced for announced in batches}
        trained: dict[TrainedRole, Trained] = {}
        while waiting:
            await self._check()
            if time.monotonic() - started > deadline_s:
                raise TrainerError(
                    f"no weights from the learner of {', '.join(waiting)} after {deadline_s:.0f} s; is it running? "
                    "run.step_deadline_s sets the limit"
                )
            for entry, ready in await broker.read_weights(cursor, block_s=_BLOCK_S):
                cursor = entry
                if ready is None:
                    log.error("entry %s announces no weights: skipped", entry)
                    continue
                batch = waiting.get(ready.role)
                if batch is None or not _answers(ready, batch):
                    continue
                if ready.error is not None:
                    raise TrainerError(f"learner of {ready.role}: {ready.error.detail}")
                seconds = time.monotonic() - started
                trained[ready.role] = Trained(ready, seconds, batch.start.parent)
                del waiting[ready.role]
        return trained

    async def _batch(
        self,
        role: TrainedRole,
        step: int,
        rows: list[TrainRow],
        version: int,
    ) -> TrainBatch:
        name = f"runs/{self._run_id}/batches/{step:05d}-{role}.parquet"
        uri = await asyncio.to_thread(write_rows, self._parts.artifacts, name, rows)
        self._written.append(uri)
        base, path = self._notes["base"][role], self._notes["paths"][role]
        initial = WeightVersion(number=base, folder=path)
        folders = Versions(self._parts.store, self._parts.artifacts, self._run_id, role)
        number = await asyncio.to_thread(folders.number_of, version)
        folder = path if number is None else str(folders.weights / version_name(number))
        best = self._notes.get("best", {"versions": {}})["versions"].get(role)
        kept = None if best is None else await asyncio.to_thread(folders.number_of, best)
        return batch_of(
            self._config, self._run_id, role, step, rows,
            initial=initial, start=WeightVersion(number=version, folder=folder), uri=uri,
            pinned=() if kept is None else (kept,),
        )  # fmt: skip


def _answers(ready: WeightsReady, batch: TrainBatch) -> bool:
    """Return whether the weights answer this batch, and not an older one of the same step."""
    version = batch.version if ready.error else batch.version + 1
    return (ready.run_id, ready.step, ready.version) == (batch.run_id, batch.step, version)
