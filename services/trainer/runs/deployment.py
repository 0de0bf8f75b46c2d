"""What the trainer knows of the deployment as a whole, measured when Prometheus asks: queues, runs, room in the store."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final, Protocol, get_args

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from triforge.errors import TriforgeError
from triforge.messages import RunStatus
from triforge.queues import QUEUES
from triforge.store.artifacts import ArtifactStore

_PATIENCE_S: Final = 3.0


class Counts(Protocol):
    """The part of the run store that is needed."""

    def count_by_status(self) -> dict[str, int]:
        """How many runs are in each status."""
        ...


class Queues(Protocol):
    """The part of the wire that is needed."""

    async def depth(self, queue: str) -> int:
        """Errands waiting in a queue."""
        ...

    async def oldest_s(self, queue: str) -> float:
        """How long its oldest errand has waited."""
        ...


class DeploymentGauges:
    """Gauges that are set by `refresh`. There is exactly one trainer, so each number is shown once in a deployment.

    Args:
        queues: the broker.
        store: the database.
        artifacts: whose disk is looked at, if it is a folder.
        registry: where they are shown.
    """

    def __init__(
        self,
        queues: Queues,
        store: Counts,
        artifacts: ArtifactStore,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._queues, self._store, self._artifacts = queues, store, artifacts

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"triforge_trainer_{name}", about, labels, registry=registry)

        self._broker = gauge("broker_up", "1 if Redis answered when this was asked.")
        self._depth = gauge("queue_depth", "Errands that wait in a queue.", "queue")
        self._oldest = gauge(
            "queue_oldest_seconds",
            "How long the oldest waiting errand of a queue has waited.",
            "queue",
        )
        self._runs = gauge("runs", "Runs in the database, by status.", "status")
        if artifacts.is_local:
            self._free = gauge("artifacts_free_bytes", "Room left on the artifact store's disk.")
            self._size = gauge("artifacts_size_bytes", "Size of the artifact store's disk.")

    async def refresh(self) -> None:
        """Look at everything once more. What does not answer in time keeps its last value; never raises."""
        jobs = [self._look_at_queues(), self._look_at_runs()]
        await asyncio.gather(*jobs)
        if self._artifacts.is_local:
            self._look_at_disk()

    async def _look_at_queues(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                for queue in QUEUES:
                    self._depth.labels(queue).set(await self._queues.depth(queue))
                    self._oldest.labels(queue).set(await self._queues.oldest_s(queue))
        except (TriforgeError, TimeoutError):
            self._broker.set(0)
        else:
            self._broker.set(1)

    async def _look_at_runs(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                counts = await asyncio.to_thread(self._store.count_by_status)
        except (TriforgeError, TimeoutError):
            return
        for status in get_args(RunStatus):
            self._runs.labels(status).set(counts.get(status, 0))

    def _look_at_disk(self) -> None:
        folder = Path(self._artifacts.root)  # made by whoever writes into it first
        try:
            there = next(place for place in (folder, *folder.parents) if place.exists())
            usage = shutil.disk_usage(there)
        except OSError:
            return
        self._free.set(usage.free)
        self._size.set(usage.total)
