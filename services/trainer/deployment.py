"""What the trainer knows of the deployment as a whole, measured when Prometheus asks: queues, runs, service in the store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, get_args

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from triforge.broker import QUEUES
from triforge.errors import TriforgeError
from triforge.store.artifacts import ArtifactStore
from triforge.types import RunStatus

_PATIENCE_S: Final = 3.0
_T = TypeVar("_T")


class Counts(Protocol):
    """The part of the run store that is needed."""

    def count_by_status(self) -> dict[str, int]:
        """How many runs are in each status."""
        ...


class Queues(Protocol):
    """The part of the broker that is needed."""

    async def depth(self, queue: str) -> int:
        """Jobs waiting in a queue."""
        ...

    async def oldest_s(self, queue: str) -> float:
        """How long its oldest job has waited."""
        ...


class _Look(Generic[_T]):
    """A look that blocks, in a thread, one at a time.

    One that hangs (a dead mount, a silent database) takes one thread, and not one more every time that Prometheus asks: they
    are the orchestrator's, too.

    Args:
        work: looks.
        patience_s: how long it is waited for.
    """

    def __init__(self, work: Callable[[], _T], patience_s: float) -> None:
        self._work, self._patience_s = work, patience_s
        self._begun: asyncio.Task[_T] | None = None

    async def __call__(self) -> _T | None:
        """What was seen; None if nothing was in time. Raises what the look raises."""
        look = self._begun
        if look is None or look.done():
            look = self._begun = asyncio.create_task(asyncio.to_thread(self._work))
            look.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        done, _ = await asyncio.wait({look}, timeout=self._patience_s)
        return look.result() if done else None


class DeploymentGauges:
    """Gauges that are set by `refresh`. There is exactly one trainer, so each number is shown once in a deployment.

    Args:
        queues: the broker.
        store: the database.
        artifacts: whose disk is looked at, if it is a folder.
        registry: where they are shown.
        patience_s: how long each of the three is waited for.
    """

    def __init__(
        self,
        queues: Queues,
        store: Counts,
        artifacts: ArtifactStore,
        registry: CollectorRegistry = REGISTRY,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._queues, self._artifacts = queues, artifacts
        self._patience_s = patience_s
        self._count = _Look(store.count_by_status, patience_s)
        self._measure = _Look(self._usage, patience_s)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"triforge_trainer_{name}", about, labels, registry=registry)

        self._broker = gauge("broker_up", "1 if Redis answered when this was asked.")
        self._depth = gauge("queue_depth", "Jobs that wait in a queue.", "queue")
        self._oldest = gauge(
            "queue_oldest_seconds",
            "How long the oldest waiting job of a queue has waited.",
            "queue",
        )
        self._runs = gauge("runs", "Runs in the database, by status.", "status")
        if artifacts.is_local:
            self._free = gauge("artifacts_free_bytes", "Service left on the artifact store's disk.")
            self._size = gauge("artifacts_size_bytes", "Size of the artifact store's disk.")

    async def refresh(self) -> None:
        """Look at everything once more. What does not answer in time keeps its last value; never raises."""
        jobs = [self._look_at_queues(), self._look_at_runs()]
        if self._artifacts.is_local:
            jobs.append(self._look_at_disk())
        await asyncio.gather(*jobs)

    async def _look_at_queues(self) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                for queue in QUEUES:
                    self._depth.labels(queue).set(await self._queues.depth(queue))
                    self._oldest.labels(queue).set(await self._queues.oldest_s(queue))
        except (TriforgeError, TimeoutError):
            self._broker.set(0)
        else:
            self._broker.set(1)

    async def _look_at_runs(self) -> None:
        try:
            counts = await self._count()
        except TriforgeError:
            return
        if counts is not None:
            for status in get_args(RunStatus):
                self._runs.labels(status).set(counts.get(status, 0))

    async def _look_at_disk(self) -> None:
        try:
            found = await self._measure()
        except OSError:
            return
        if found is not None:
            self._free.set(found[0])
            self._size.set(found[1])

    def _usage(self) -> tuple[int, int]:
        """Bytes that are free on the artifact store's disk, and all of them."""
        folder = Path(self._artifacts.root)  # made by whoever writes into it first
        there = next(place for place in (folder, *folder.parents) if place.exists())
        usage = shutil.disk_usage(there)
        return usage.free, usage.total
