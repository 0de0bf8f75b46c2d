"""What a pool knows about its engines, as Prometheus metrics; read when somebody asks, kept nowhere twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from services.policy.fence import Fence
from services.policy.member import Member
from services.policy.pool import Pool

_PREFIX = "triforge_policy_engine"
_STATES = ("closed", "half_open", "open", "fenced_off")


class PoolMetrics(Collector):
    """Collects from a pool; register it."""

    def __init__(self, pool: Pool, fence: Fence) -> None:
        self._pool, self._fence = pool, fence

    def collect(self) -> Iterable[Metric]:
        """Everything as it is now."""
        pool = self._pool
        yield GaugeMetricFamily(
            "triforge_policy_engines_serving",
            "Engines that hold the live weight version.",
            value=len(pool.serving()),
        )
        version = GaugeMetricFamily(
            "triforge_policy_weight_version", "Live weight version, by role.", labels=["role"]
        )
        if self._fence.version >= 0:  # an engine has answered
            version.add_metric([self._fence.state().role], self._fence.version)
        yield version
        yield GaugeMetricFamily(
            "triforge_policy_in_flight", "Samples being drawn.", value=pool.in_flight()
        )
        yield GaugeMetricFamily(
            "triforge_policy_waiting",
            "Samples that wait for a place at an engine.",
            value=pool.line.waiting,
        )
        yield CounterMetricFamily(
            "triforge_policy_turned_away",
            "Requests that were told to come back later.",
            value=pool.line.turned_away,
        )
        yield CounterMetricFamily(
            "triforge_policy_weights_refused",
            "Times that an engine did not take weights, or did not prove them.",
            value=self._fence.failures,
        )
        yield CounterMetricFamily(
            "triforge_policy_broadcasts_missed",
            "Times that an engine read a folder because a broadcast had failed.",
            value=self._fence.fallbacks,
        )
        yield from self._engines([*pool.members, *pool.left, *([pool.api] if pool.api else [])])

    def _engines(self, members: list[Member]) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            f"{_PREFIX}_state",
            "1 for the state that the engine is in: closed is well.",
            labels=["engine", "state"],
        )
        flying = GaugeMetricFamily(f"{_PREFIX}_in_flight", "Samples in flight.", labels=["engine"])
        version = GaugeMetricFamily(
            f"{_PREFIX}_weight_version", "Weight version of the last answer.", labels=["engine"]
        )
        failures = CounterMetricFamily(
            f"{_PREFIX}_failures", "Failed requests.", labels=["engine", "kind"]
        )
        paused = CounterMetricFamily(
            f"{_PREFIX}_paused_seconds",
            "Seconds for which requests were held while weights changed.",
            labels=["engine"],
        )
        seconds = HistogramMetricFamily(
            f"{_PREFIX}_request_seconds", "Seconds of a request.", labels=["engine"]
        )
        for member in members:
            url = member.engine.url
            for name in _STATES:
                state.add_metric([url, name], float(member.state == name))
            flying.add_metric([url], member.in_flight)
            paused.add_metric([url], member.engine.paused_s)
            if member.engine.answered is not None:
                version.add_metric([url], member.engine.answered)
            for kind, count in member.failures.items():
                failures.add_metric([url, kind], count)
            bounds = [*map(str, member.seconds.BOUNDS), "+Inf"]
            counts = accumulate(member.seconds.counts)
            seconds.add_metric([url], list(zip(bounds, counts, strict=True)), member.seconds.total)
        yield from (state, flying, version, failures, paused, seconds)
