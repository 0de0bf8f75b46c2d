"""Counters of the requests to a policy service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

PREFIX = "triforge_policy"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

        self.requests = counter("requests", "Prompts answered.")
        self.tokens = counter("tokens", "Tokens sampled.")
        text = "Prompt tokens that came from an engine's cache, once a prompt."
        self.cached_tokens = counter("cached_tokens", text)
        self.turned_away = counter("turned_away", "Requests that were answered 429.")
        text = "Times that an engine did not take weights, or did not show them."
        self.weights_refused = counter("weights_refused", text)
        text = "Times that an engine read a folder because a broadcast had failed."
        self.broadcasts_missed = counter("broadcasts_missed", text)
        self.engine_failures = counter("engine_failures", "Failed requests.", "engine", "kind")
        self.batch_seconds = Histogram(
            f"{PREFIX}_batch_seconds", "Seconds a batch took.", registry=self.registry
        )
        self.engine_seconds = Histogram(
            f"{PREFIX}_engine_request_seconds",
            "Seconds of a request.",
            ["engine"],
            buckets=_SECONDS,
            registry=self.registry,
        )
