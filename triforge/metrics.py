"""The version of every process as a metric, and `/metrics` of processes without an API: workers and learners."""

from __future__ import annotations

from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, start_http_server

from triforge import __version__
from triforge.config import Settings
from triforge.errors import ConfigError


def _build(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "triforge_build_info",
        "1; which version of triforge this process is of.",
        ["version", "service", "process"],
        registry=registry,
    )


_BUILD: Final = _build(REGISTRY)
_SLOTS: Final = Gauge(
    "triforge_worker_slots", "Jobs that this worker can work on at a time, by queue.", ["queue"]
)


def identify(service: str, process: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Set the metric with the version of this process."""
    gauge = _BUILD if registry is REGISTRY else _build(registry)
    gauge.labels(__version__, service, process).set(1)


def serve_metrics(
    settings: Settings, *, service: str = "", process: str = "", queue: str = "", slots: int = 0
) -> WSGIServer | None:
    """Serve `/metrics` at `TRIFORGE_METRICS_PORT`, in a thread; None if no port is set.

    Every other path answers the same, so `/healthz` shows that the process is alive.

    Raises:
        ConfigError: the port is in use.
    """
    if service:
        identify(service, process)
    if queue:
        _SLOTS.labels(queue).set(slots)
    if not settings.metrics_port:
        return None
    try:
        server, _ = start_http_server(settings.metrics_port, addr=settings.host)
    except OSError as error:
        raise ConfigError(
            f"TRIFORGE_METRICS_PORT: given {settings.metrics_port}, where metrics cannot be served ({error.strerror}); "
            "expected a free port for each process"
        ) from error
    return server
