"""Cases: every overlay on every cluster it is for, and every component on every overlay."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.k8s_test.manifests import folders
from scripts.k8s_test.nodes import Nodes

_CPU = [Nodes(cpu=1, cores=2, memory="8Gi"), Nodes(cpu=3, cores=4, memory="16Gi")]
_ONE = [Nodes(gpu=1), Nodes(gpu=1, tainted=True), Nodes(gpu=1, cpu=3), Nodes(gpu=1, tainted=True, cpu=3)]  # fmt: skip
_FOUR = [Nodes(gpu=4), Nodes(gpu=4, cpu=3), Nodes(gpu=4, tainted=True, cpu=3)]
_EIGHT = [Nodes(gpu=8), Nodes(gpu=8, cpu=3), Nodes(gpu=8, tainted=True, cpu=3)]
# Clusters on which an overlay has its place; components are tried on the last.
CLUSTERS = {
    "cpu": _CPU,
    "gpu-single-node": [*_FOUR, *_EIGHT, *_ONE],
    "gpu-single-node-8": [*_FOUR, *_EIGHT, *_ONE],
    "gpu-cluster": [*_EIGHT, *_FOUR],
}
# Components that are for some overlays only.
_GPU = {overlay: on[-1] for overlay, on in CLUSTERS.items() if overlay != "cpu"}
_WHOLE = Nodes(gpu=8, tainted=True, cpu=3)
ONLY = {
    "broadcast": {"gpu-cluster": _GPU["gpu-cluster"]},
    "load-models": _GPU,
    "multi-node-engine": {"gpu-cluster": _WHOLE},
    "nvidia-runtime": _GPU,
    "rdma": {"gpu-cluster": _GPU["gpu-cluster"]},
}
# What people combine.
TOGETHER = [
    ("cpu", "ingress", "keda", "monitoring", "toolbox", "code", "traces"),
    ("gpu-single-node", "autoscaling", "toolbox", "external-redis", "s3", "load-models"),
    ("gpu-single-node-8", "keda", "load-models", "nvidia-runtime", "toolbox"),
    ("gpu-cluster", "multi-node-engine", "broadcast", "rdma", "nvidia-runtime"),
    ("gpu-cluster", "autoscaling", "external-postgres", "gateway", "keda-external-redis", "monitoring", "multi-node-engine"),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An overlay with components on a cluster, applied by Kustomize or installed as a chart."""

    variant: tuple[str, ...]
    nodes: Nodes
    chart: bool = False

    def __str__(self) -> str:
        return f"{'chart: ' * self.chart}{' + '.join(self.variant)} on {self.nodes}"


def cases() -> list[Case]:
    """All of them, in an order that does not change."""
    found = [Case((overlay,), nodes) for overlay, on in CLUSTERS.items() for nodes in on]
    for component in folders("components"):
        default = {overlay: on[-1] for overlay, on in CLUSTERS.items()}
        for overlay, nodes in ONLY.get(component, default).items():
            found.append(Case((overlay, component), nodes))
    found += [Case(variant, _place(variant)) for variant in TOGETHER]
    charts = [(overlay,) for overlay in CLUSTERS] + TOGETHER
    return found + [Case(variant, _place(variant), chart=True) for variant in charts]


def _place(variant: tuple[str, ...]) -> Nodes:
    overlay, *components = variant
    return _WHOLE if "multi-node-engine" in components else CLUSTERS[overlay][-1]
