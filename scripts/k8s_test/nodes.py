"""Described nodes: what the scheduler sees of machines that are not there."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from scripts.k8s_test.control_plane import ControlPlane

_GPUS = 8
_GPU_NODE = {"cpu": "96", "memory": "1000Gi", "nvidia.com/gpu": str(_GPUS), "rdma/rdma_shared_device_a": "8"}  # fmt: skip
_EVERY_NODE = {"pods": "110", "ephemeral-storage": "400Gi"}


@dataclass(frozen=True)
class Nodes:
    """A cluster: nodes of 8 GPUs, tainted as clouds taint them or not, and nodes of CPUs alone."""

    gpu: int = 0
    tainted: bool = False
    cpu: int = 0
    cores: int = 16
    memory: str = "64Gi"

    def __str__(self) -> str:
        parts = [f"{self.gpu} x {_GPUS} GPUs" + (", tainted" if self.tainted else "")] * bool(self.gpu)  # fmt: skip
        parts += [f"{self.cpu} x {self.cores} cores and {self.memory}"] * bool(self.cpu)
        return " + ".join(parts)

    def documents(self, prefix: str) -> list[dict[str, Any]]:
        """Node objects with their status."""
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        small = {"cpu": str(self.cores), "memory": self.memory}
        found = [_node(f"{prefix}-gpu-{n}", _GPU_NODE, [taint] if self.tainted else []) for n in range(self.gpu)]  # fmt: skip
        return found + [_node(f"{prefix}-cpu-{n}", small, []) for n in range(self.cpu)]


def _node(name: str, size: dict[str, str], taints: list[dict[str, str]]) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}  # fmt: skip
    if "nvidia.com/gpu" in size:
        labels["nvidia.com/gpu.present"] = "true"
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True", "reason": "Described", "message": "no machine is behind it"}  # fmt: skip
    ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    everything = _EVERY_NODE | size
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"capacity": everything, "allocatable": everything, "conditions": [ready]},
    }


def add_nodes(plane: ControlPlane, nodes: Nodes, prefix: str) -> None:
    """Make them Ready."""
    for document in nodes.documents(prefix):
        plane.kubectl("create", "-f", "-", given=json.dumps(document))
        name, status = document["metadata"]["name"], json.dumps({"status": document["status"]})
        plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
