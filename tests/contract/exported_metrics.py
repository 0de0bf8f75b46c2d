"""Every metric that a process of triforge shows, found by asking their registries."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric

from services.env_adapter.app import ProposalGauge
from services.policy.__main__ import build
from services.trainer.loop.gauges import DeploymentGauges
from triforge.config import Settings
from triforge.store.artifacts import ArtifactStore

ROOT = Path(__file__).parents[2]
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",), "gauge": ("",)}


class _Store:
    def proposal_counts(self) -> list[tuple[str, str, int]]:
        return [("pool", "pending", 1)]

    def count_by_status(self) -> dict[str, int]:
        return {"running": 1}


def _import_all() -> None:
    """Import every module that counts something."""
    for path in sorted(
        [
            *ROOT.glob("services/**/*.py"),
            *ROOT.glob("triforge/**/*.py"),
            *ROOT.glob("environments/**/*.py"),
        ]
    ):
        if "prometheus_client" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _families() -> Iterator[Metric]:
    _import_all()
    yield from REGISTRY.collect()
    gateway = build(Settings(engines="http://127.0.0.1:1"))
    yield from gateway.metrics.registry.collect()
    own = CollectorRegistry()
    unused: Any = _Store()
    own.register(ProposalGauge(unused))
    DeploymentGauges(unused, unused, ArtifactStore(str(ROOT)), own)
    yield from own.collect()


@cache
def documented_names() -> frozenset[str]:
    """Names as people write them: counters with `_total`, histograms without a suffix."""
    return frozenset(
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in _families()
        if family.name.startswith("triforge_")
    )


@cache
def series_names() -> frozenset[str]:
    """Names that a query may ask for."""
    return frozenset(
        f"{family.name}{suffix}"
        for family in _families()
        if family.name.startswith("triforge_")
        for suffix in SUFFIXES[family.type]
    )
