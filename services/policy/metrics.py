"""What can be seen of a policy service: counters of requests, and gauges of its engines read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from services.policy.pool import Pool
    from services.policy.weight_sync import WeightSync

_PREFIX = "triforge_policy"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

        self.requests = counter("requests", "Prompts answered.")
        self.tokens = counter("tokens", "Tokens sampled.")
        text = "Prompt tokens that came from an engine's cache, once a prompt."
        self.cached_tokens = counter("cached_tokens", text)
        self.turned_away = counter("turned_away", "Requests that were told to come back later.")
        text = "Times that an engine did not take weights, or did not show them."
        self.weights_refused = counter("weights_refused", text)
        text = "Times that an engine read a folder because a broadcast had failed."
        self.broadcasts_missed = counter("broadcasts_missed", text)
        self.engine_failures = counter("engine_failures", "Failed requests.", "engine", "kind")
        self.batch_seconds = Histogram(
            f"{_PREFIX}_batch_seconds", "Seconds a batch took.", registry=self.registry
        )
        self.engine_seconds = Histogram(
            f"{_PREFIX}_engine_request_seconds",
            "Seconds of a request.",
            ["engine"],
            buckets=_SECONDS,
            registry=self.registry,
        )


class EngineMetrics(Collector):
    """The state of a pool's engines; register it."""

    def __init__(self, pool: Pool, weights: WeightSync) -> None:
        self._pool, self._weights = pool, weights

    def collect(self) -> Iterable[Metric]:
        """Everything as it is now."""
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
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)
        active = _gauge("weight_version", "Active weight version, by role.", "role")
        if self._weights.version >= 0:  # an engine has answered
            active.add_metric([self._weights.role], self._weights.version)
        yield active
        serving = _gauge("engine_serving", "1 while the engine gets requests.")
        flying = _gauge("engine_in_flight", "Samples in flight.")
        version = _gauge("engine_weight_version", "Weight version of the last answer.")
        text = "Seconds for which requests were held while weights changed."
        paused = CounterMetricFamily(f"{_PREFIX}_engine_paused_seconds", text, labels=["engine"])
        for member in pool.everyone():
            serving.add_metric([member.url], float(member.serving))
            flying.add_metric([member.url], member.in_flight)
            paused.add_metric([member.url], member.paused_s)
            if member.version is not None:
                version.add_metric([member.url], member.version)
        yield from (serving, flying, version, paused)


def _gauge(name: str, text: str, label: str = "engine") -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=[label])
