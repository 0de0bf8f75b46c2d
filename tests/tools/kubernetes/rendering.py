"""The manifests as `kubectl apply -k` would send them: every overlay, and every component on one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from scripts.k8s_test import manifests

ROOT = manifests.ROOT
OVERLAYS, COMPONENTS = manifests.folders("overlays"), manifests.folders("components")
NAME = "app.kubernetes.io/name"
Document = manifests.Document

# What is rendered and checked: each overlay, each component on one, and what people will combine.
VARIANTS: list[tuple[str, ...]] = [
    *((overlay,) for overlay in OVERLAYS),
    ("cpu", "code", "traces"),
    ("gpu-cluster", "sidecar"),
    ("cpu", "ingress", "keda", "monitoring", "toolbox"),
    ("gpu-single-node", "autoscaling", "external-redis", "s3", "load-models"),
    ("gpu-cluster", "multi-node-engine", "broadcast", "rdma", "nvidia-runtime"),
    ("gpu-cluster", "autoscaling", "external-postgres", "gateway", "keda-external-redis", "monitoring", "multi-node-engine"),
]  # fmt: skip


def variant_name(variant: tuple[str, ...]) -> str:
    return "+".join(variant)


@cache
def render(variant: tuple[str, ...]) -> list[Document]:
    """Documents of an overlay with components, namespace and all."""
    return manifests.render(variant)


def of_kind(documents: list[Document], *kinds: str) -> list[Document]:
    return [d for d in documents if d["kind"] in kinds]


def named(document: Document) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def workloads(documents: list[Document]) -> list[tuple[Document, Document]]:
    """Return the documents that make pods, each with its pod template."""
    found = [
        (document, document["spec"]["template"])
        for document in of_kind(documents, "Deployment", "StatefulSet", "Job")
    ]
    for document in of_kind(documents, "LeaderWorkerSet"):
        parts = document["spec"]["leaderWorkerTemplate"]
        # The controller adds this label; the first pod of a group is the one that services choose.
        template = {**parts["workerTemplate"], "metadata": {**parts["workerTemplate"]["metadata"]}}
        labels = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
        template["metadata"]["labels"] = template["metadata"]["labels"] | labels
        found.append((document, template))
    return found


def containers(documents: list[Document]) -> Iterator[tuple[Document, Document, Document]]:
    """Every container with its workload and its pod's spec."""
    for document, template in workloads(documents):
        pod = template["spec"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield document, pod, container


def environment(documents: list[Document], container: Document) -> dict[str, Any]:
    """Variables of a container: a text, or where it comes from."""
    found: dict[str, Any] = {}
    for source in container.get("envFrom", []):
        if "secretRef" in source:  # of the component `s3`: what its Secret may hold
            assert source["secretRef"] == {"name": "triforge-s3", "optional": True}
            continue
        name = source["configMapRef"]["name"]
        (config,) = [d for d in of_kind(documents, "ConfigMap") if d["metadata"]["name"] == name]
        found |= config["data"]
    for entry in container.get("env", []):
        found[entry["name"]] = entry.get("value", entry.get("valueFrom"))
    return found


def chosen(selector: Document, labels: dict[str, str]) -> bool:
    """Whether a label selector chooses a pod."""
    expressions = selector.get("matchExpressions", [])
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        {
            "In": labels.get(rule["key"]) in rule.get("values", []),
            "NotIn": labels.get(rule["key"]) not in rule.get("values", []),
            "Exists": rule["key"] in labels,
            "DoesNotExist": rule["key"] not in labels,
        }[rule["operator"]]
        for rule in expressions
    )


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS = {None: 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}  # fmt: skip


def quantity(text: str | int) -> float:
    """A quantity of Kubernetes as a number; what is none fails the test."""
    match = _QUANTITY.fullmatch(str(text))
    assert match is not None, f"{text!r} is no quantity"
    return float(match[1]) * _UNITS[match[2]]
