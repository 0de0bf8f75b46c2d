"""What Prometheus is shown of a learner."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

from triforge.types import StepReport, TrainedRole

BATCHES: Final = Counter(
    "triforge_trainer_learner_batches",
    "Batches that a learner answered, by result.",
    ["role", "result"],
)
_SKIPPED: Final = Counter(
    "triforge_trainer_learner_skipped_updates", "Updates that this learner left out.", ["role"]
)
_SPEED: Final = Gauge(
    "triforge_trainer_learner_tokens_per_second", "Speed of the last batch.", ["role"]
)
_CHECKPOINT: Final = Gauge(
    "triforge_trainer_learner_checkpoint_timestamp_seconds",
    "When this learner last wrote a checkpoint and weights.",
    ["role"],
)


def begin(role: TrainedRole) -> None:
    """Show what is counted from the start on."""
    for result in ("trained", "failed"):
        BATCHES.labels(role, result)
    _SKIPPED.labels(role)


def trained(role: TrainedRole, report: StepReport) -> None:
    """A version is on the disk."""
    BATCHES.labels(role, "trained").inc()
    _SKIPPED.labels(role).inc(report.metrics.get("skipped_updates", 0.0))
    if "tokens_per_s" in report.metrics:
        _SPEED.labels(role).set(report.metrics["tokens_per_s"])
    _CHECKPOINT.labels(role).set_to_current_time()
