"""The measures of the last committed step, for Prometheus.

One gauge for all of them: `triforge_step_measure{pool="...", measure="theory/mu_within"}`. Names are those of
`GET /v1/runs/{id}/steps`. Measures that a step lacks (evaluations) keep their last value until another run begins.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from triforge.messages import RunStep


class StepGauges:
    """Shows steps.

    Args:
        registry: where they are shown.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._measures = Gauge(
            "triforge_step_measure", "A measure of the last committed training step.",
            ["pool", "measure"], registry=registry,
        )  # fmt: skip
        self._step = Gauge(
            "triforge_run_step", "The last committed training step.", ["pool"], registry=registry
        )
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


STEPS = StepGauges()
