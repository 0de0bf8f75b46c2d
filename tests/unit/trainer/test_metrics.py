"""The metrics of a run for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.trainer.loop.gauges import StepGauges
from triforge.types import RunStep


def record(run: str, step: int, **metrics: float) -> RunStep:
    return RunStep(
        run_id=run, step=step, at=0.0, policy_version=1, reward_version=1, metrics=metrics
    )


def test_the_last_value_of_every_measure_is_shown_until_another_run_begins() -> None:
    registry = CollectorRegistry()
    gauges = StepGauges(registry)

    def shown(measure: str, pool: str = "pool-1") -> float | None:
        return registry.get_sample_value(
            "triforge_trainer_step_measure", {"pool": pool, "measure": measure}
        )

    gauges.show(record("run-1", 1, **{"theory/mu": 1.2, "eval/greedy": 0.5}), "pool-1")
    gauges.show(record("run-1", 2, **{"theory/mu": 1.3}), "pool-1")
    assert (shown("theory/mu"), shown("eval/greedy")) == (1.3, 0.5)
    assert registry.get_sample_value("triforge_trainer_step", {"pool": "pool-1"}) == 2.0
    gauges.show(record("run-2", 0, **{"eval/greedy": 0.1}), "pool-2")
    assert (shown("theory/mu"), shown("eval/greedy", "pool-2")) == (None, 0.1)
