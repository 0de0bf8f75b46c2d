"""Metrics of runs and of the deployment for Prometheus. The names and what they mean for an operator: docs/operate.md.

The measures of the last committed step are one gauge: `triforge_trainer_step_measure{pool="...", measure="theory/mu_within"}`.
Names are those of `GET /v1/runs/{id}/steps`. Measures that a step lacks (evaluations) keep their last value until another
run begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Final, Generic, TypeVar, get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.trainer.runs.store import RunStore
from triforge.broker import QUEUES, Broker
from triforge.errors import TriforgeError
from triforge.store.artifacts import ArtifactStore
from triforge.types import RunStatus, RunStep, TrainedRole

PHASES: Final = ("play", "credit", "train", "publish", "adapt", "record")
_ROLES: Final[tuple[TrainedRole, ...]] = ("policy", "reward")  # shown from the start
_LAGS: Final = (0, 1, 2, 4, 8, 16)
_SECONDS: Final = (0.1, 1, 5, 15, 60, 300, 900, 3600, 14400)
_PATIENCE_S: Final = 3.0
_T = TypeVar("_T")


def _gauges(registry: CollectorRegistry) -> Callable[..., Gauge]:
    def gauge(name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"triforge_trainer_{name}", about, labels, registry=registry)

    return gauge


class StepGauges:
    """Shows committed steps."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        gauge = _gauges(registry)
        self._measures = gauge(
            "step_measure", "A measure of the last committed training step.", "pool", "measure"
        )
        self._step = gauge("step", "The last committed training step.", "pool")
        self._version = gauge(
            "weight_version", "Weight version after the last committed step, by role.", "role"
        )
        self._seconds = Histogram(
            "triforge_trainer_phase_seconds",
            "Seconds of each phase of a committed training step.",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._skipped = Counter(
            "triforge_trainer_skipped_updates",
            "Updates that a learner left out because the gradient was not finite, by role.",
            ["role"],
            registry=registry,
        )
        for role in _ROLES:
            self._skipped.labels(role)
        self._run = ""

    def show(self, record: RunStep, pool: str) -> None:
        """Show a committed step of a run on a pool."""
        if record.run_id != self._run:
            self._measures.clear()
            self._step.clear()
            self._run = record.run_id
        self._step.labels(pool).set(record.step)
        for name, value in record.metrics.items():
            self._measures.labels(pool, name).set(value)
        for phase in PHASES:
            if (seconds := record.metrics.get(f"seconds/{phase}")) is not None:
                self._seconds.labels(phase).observe(seconds)
        for role, version in record.versions.items():
            self._skipped.labels(role).inc(record.metrics.get(f"{role}/skipped_updates", 0.0))
            self._version.labels(role).set(version)


class Staleness(Collector):
    """`triforge_trainer_staleness_versions{role}`: trained tokens by how many versions they lagged behind.

    A histogram of its own, because a step adds hundreds of thousands of tokens at once.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counts = {role: [0] * (len(_LAGS) + 1) for role in _ROLES}
        self._sums = dict.fromkeys(_ROLES, 0)
        registry.register(self)

    def add(self, role: TrainedRole, ages: Mapping[int, int]) -> None:
        """Count tokens by age, in versions."""
        self._counts.setdefault(role, [0] * (len(_LAGS) + 1))
        self._sums.setdefault(role, 0)
        for age, tokens in ages.items():
            bucket = next((n for n, lag in enumerate(_LAGS) if age <= lag), len(_LAGS))
            self._counts[role][bucket] += tokens
            self._sums[role] += age * tokens

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram of all tokens so far."""
        about = "Trained tokens by how many weight versions they lagged behind."
        name = "triforge_trainer_staleness_versions"
        family = HistogramMetricFamily(name, about, labels=["role"])
        bounds = (*(f"{lag}.0" for lag in _LAGS), "+Inf")
        for role, counts in list(self._counts.items()):
            totals = map(float, accumulate(counts))
            family.add_metric([role], list(zip(bounds, totals, strict=True)), self._sums[role])
        yield family


STEPS: Final = StepGauges()
STALENESS: Final = Staleness()
RESENT: Final = Counter("triforge_trainer_jobs_resent", "Lost jobs that were sent again.")
REPLAYED: Final = Counter(
    "triforge_trainer_groups_replayed", "Groups played again because other weights had played them."
)
LANDED: Final = Counter(
    "triforge_trainer_groups_landed", "Groups that were received, played and judged."
)
ENDED: Final = Counter("triforge_trainer_runs_ended", "Runs that ended, by how.", ["status"])
for _status in ("finished", "stopped", "failed"):  # no rate sees an increase from nothing to one
    ENDED.labels(_status)
PROGRESS: Final = Gauge(
    "triforge_trainer_progress_timestamp_seconds",
    "Last progress of a run: a group landed, a phase of a step ended, or a step was committed.",
)
PROGRESS.set_to_current_time()
PUBLISHED: Final = Gauge(
    "triforge_trainer_weights_published_timestamp_seconds",
    "When weights of a role last went live, since this process started.",
    ["role"],
)


# ---- the deployment as a whole ----


class _Look(Generic[_T]):
    """A blocking measurement in a thread, one at a time.

    A hanging measurement (a dead mount, a silent database) takes one thread, and not one more for each request of Prometheus:
    the orchestrator needs threads, too.
    """

    def __init__(self, work: Callable[[], _T], patience_s: float) -> None:
        self._work, self._patience_s = work, patience_s
        self._begun: asyncio.Task[_T] | None = None

    async def __call__(self) -> _T | None:
        """Return the result; None if it was not in time. Raises the errors of the measurement."""
        look = self._begun
        if look is None or look.done():
            look = self._begun = asyncio.create_task(asyncio.to_thread(self._work))
            look.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        done, _ = await asyncio.wait({look}, timeout=self._patience_s)
        return look.result() if done else None


class DeploymentGauges:
    """Queues, runs and the artifact store's disk (if it is a folder), measured when Prometheus asks, each for `patience_s`.

    There is exactly one trainer in a deployment.
    """

    def __init__(
        self,
        queues: Broker,
        store: RunStore,
        artifacts: ArtifactStore,
        registry: CollectorRegistry = REGISTRY,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._queues, self._artifacts, self._patience_s = queues, artifacts, patience_s
        self._count = _Look(store.count_by_status, patience_s)
        self._measure = _Look(self._usage, patience_s)
        gauge = _gauges(registry)
        self._broker = gauge("broker_up", "1 if Redis answered when this was asked.")
        self._depth = gauge("queue_depth", "Jobs that wait in a queue.", "queue")
        self._oldest = gauge(
            "queue_oldest_seconds",
            "How long the oldest waiting job of a queue has waited.",
            "queue",
        )
        self._runs = gauge("runs", "Runs in the database, by status.", "status")
        if artifacts.is_local:
            self._free = gauge("artifacts_free_bytes", "Space left on the artifact store's disk.")
            self._size = gauge("artifacts_size_bytes", "Size of the artifact store's disk.")

    async def refresh(self) -> None:
        """Measure again. A gauge without an answer in time keeps its last value; never raises."""
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
        with contextlib.suppress(TriforgeError):
            if (counts := await self._count()) is not None:
                for status in get_args(RunStatus):
                    self._runs.labels(status).set(counts.get(status, 0))

    async def _look_at_disk(self) -> None:
        with contextlib.suppress(OSError):
            if found := await self._measure():
                self._free.set(found[0])
                self._size.set(found[1])

    def _usage(self) -> tuple[int, int]:
        """Bytes that are free on the artifact store's disk, and all of them."""
        folder = Path(self._artifacts.root)  # the first writer creates it
        there = next(place for place in (folder, *folder.parents) if place.exists())
        usage = shutil.disk_usage(there)
        return usage.free, usage.total
