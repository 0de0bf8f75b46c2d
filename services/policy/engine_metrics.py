"""Gauges of the engines of a policy service, read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.policy.engines.pool import Pool
from services.policy.metrics import PREFIX
from services.policy.weights.sync import WeightSync


class EngineMetrics(Collector):
    """The state of a pool's engines, as a collector to register."""

    def __init__(self, pool: Pool, weights: WeightSync) -> None:
        self._pool, self._weights = pool, weights

    def collect(self) -> Iterable[Metric]:
        """Yield the present values."""
        pool = self._pool
        for name, text, value in (
            (
                "engines_serving",
                "Engines that hold the active weight version.",
                len(pool.serving()),
            ),
            ("in_flight", "Samples being drawn.", pool.in_flight()),
            ("waiting", "Samples that wait for a place at an engine.", pool.waiting),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)
        active = _gauge("weight_version", "Active weight version, by role.", "role")
        if self._weights.version >= 0:  # an engine has answered
            active.add_metric([self._weights.role], self._weights.version)
        yield active
        serving = _gauge("engine_serving", "1 while the engine gets requests.")
        flying = _gauge("engine_in_flight", "Samples in flight.")
        version = _gauge("engine_weight_version", "Weight version of the last answer.")
        text = "Seconds for which requests were held while weights changed."
        paused = CounterMetricFamily(f"{PREFIX}_engine_paused_seconds", text, labels=["engine"])
        for member in pool.everyone():
            serving.add_metric([member.url], float(member.serving))
            flying.add_metric([member.url], member.in_flight)
            paused.add_metric([member.url], member.paused_s)
            if member.version is not None:
                version.add_metric([member.url], member.version)
        yield from (serving, flying, version, paused)


def _gauge(name: str, text: str, label: str = "engine") -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
