"""What Prometheus is shown of runs. The names and what they mean for an operator: docs/operations.md.

The measures of the last committed step are one gauge: `triforge_trainer_step_measure{pool="...", measure="theory/mu_within"}`.
Names are those of `GET /v1/runs/{id}/steps`. Measures that a step lacks (evaluations) keep their last value until another
run begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from triforge.types import RunStep, TrainedRole

PHASES: Final = ("play", "credit", "train", "publish", "adapt", "record")
_LAGS: Final = (0, 1, 2, 4, 8, 16)
_SIDES: Final[tuple[tuple[TrainedRole, str], ...]] = (("policy", "policy"), ("reward", "reward"))


class StepGauges:
    """Shows steps.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._measures = Gauge(
            "triforge_trainer_step_measure", "A measure of the last committed training step.",
            ["pool", "measure"], registry=registry,
        )  # fmt: skip
        self._step = Gauge(
            "triforge_trainer_step",
            "The last committed training step.",
            ["pool"],
            registry=registry,
        )
        self._seconds = Histogram(
            "triforge_trainer_phase_seconds", "Seconds of each phase of a committed training step.",
            ["phase"], buckets=(0.1, 1, 5, 15, 60, 300, 900, 3600, 14400), registry=registry,
        )  # fmt: skip
        self._skipped = Counter(
            "triforge_trainer_skipped_updates",
            "Updates that a learner left out because the gradient was not finite, by role.",
            ["role"],
            registry=registry,
        )
        self._version = Gauge(
            "triforge_trainer_weight_version", "Weight version after the last committed step, by role.",
            ["role"], registry=registry,
        )  # fmt: skip
        for role, _ in _SIDES:
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
        for role, side in _SIDES:
            self._skipped.labels(role).inc(record.metrics.get(f"{side}/skipped_updates", 0.0))
        self._version.labels("policy").set(record.policy_version)
        self._version.labels("reward").set(record.reward_version)


class Staleness(Collector):
    """`triforge_trainer_staleness_versions{role}`: trained tokens by how many versions they lagged behind.

    A histogram of its own, because a step adds hundreds of thousands of tokens at once.

    Args:
        registry: where it is shown.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counts: dict[str, list[int]] = {role: [0] * (len(_LAGS) + 1) for role, _ in _SIDES}
        self._sums: dict[str, int] = {role: 0 for role, _ in _SIDES}
        registry.register(self)

    def add(self, role: TrainedRole, ages: Mapping[int, int]) -> None:
        """Count tokens by age, in versions."""
        for age, tokens in ages.items():
            bucket = next((n for n, lag in enumerate(_LAGS) if age <= lag), len(_LAGS))
            self._counts[role][bucket] += tokens
            self._sums[role] += age * tokens

    def collect(self) -> Iterator[Metric]:
        """As it is now."""
        family = HistogramMetricFamily(
            "triforge_trainer_staleness_versions",
            "Trained tokens by how many weight versions they lagged behind.",
            labels=["role"],
        )
        for role, counts in self._counts.items():
            total, buckets = 0, []
            for lag, count in zip((*(f"{lag}.0" for lag in _LAGS), "+Inf"), counts, strict=True):
                total += count
                buckets.append((lag, float(total)))
            family.add_metric([role], buckets, float(self._sums[role]))
        yield family


STEPS: Final = StepGauges()
STALENESS: Final = Staleness()
RESENT: Final = Counter(
    "triforge_trainer_jobs_resent", "Jobs sent again because nobody was at them any more."
)
REPLAYED: Final = Counter(
    "triforge_trainer_groups_replayed", "Groups played again because other weights had played them."
)
LANDED: Final = Counter("triforge_trainer_groups_landed", "Groups that came in, played and judged.")
ENDED: Final = Counter("triforge_trainer_runs_ended", "Runs that ended, by how.", ["status"])
for _status in ("finished", "stopped", "failed"):
    ENDED.labels(
        _status
    )  # there from the start: an increase from nothing to one is seen by no rate
PROGRESS: Final = Gauge(
    "triforge_trainer_progress_timestamp_seconds",
    "When a run last got on: a group landed, a phase of a step ended, a step was committed.",
)
PROGRESS.set_to_current_time()
PUBLISHED: Final = Gauge(
    "triforge_trainer_weights_published_timestamp_seconds",
    "When weights of a role last went live, since this process started.",
    ["role"],
)
