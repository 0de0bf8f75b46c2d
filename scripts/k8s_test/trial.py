"""One case: described nodes, everything applied, and where the scheduler put the pods."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from scripts.k8s_test.cases import Case
from scripts.k8s_test.control_plane import ControlPlane
from scripts.k8s_test.manifests import (
    CHART,
    HELM,
    NO_HELM,
    Document,
    chart_values,
    differences,
    render,
    render_chart,
)
from scripts.k8s_test.nodes import add_nodes
from triforge.errors import ConfigError, TriforgeError, UnavailableError

_PLACE_S = 90.0  # until every pod is made and has a node, on a busy machine
_SETTLE_S = 6.0  # that what is Pending stays so before it counts


@dataclass(frozen=True)
class Verdict:
    case: Case
    objects: int = 0
    pods: int = 0
    on_nodes: dict[str, int] = field(default_factory=dict)  # pods by node
    problems: tuple[str, ...] = ()
    skipped: str = ""  # why it was not tried


def try_case(plane: ControlPlane, case: Case, number: int) -> Verdict:
    """Apply a case in a namespace of its own and wait for its pods; leaves no node behind."""
    namespace = f"triforge-{number}"
    if case.chart and not HELM:
        return Verdict(case, skipped=NO_HELM)
    try:
        documents = render(case.variant, namespace)
    except ConfigError as error:
        return Verdict(case, problems=(error.detail,))
    if plane.places:
        add_nodes(plane, case.nodes, namespace)
        _add_volumes(plane, documents, namespace)
    try:
        made = [*documents, *(pods for d in documents for pods in _as_controllers_do(d))]
        plane.kubectl("create", "namespace", namespace)
        if case.chart:
            _install(plane, case, documents, namespace)
        _apply(plane, [d for d in made if not case.chart or d not in documents])
        pods = _settled(plane, made, namespace) if plane.places else []
    except TriforgeError as error:
        return Verdict(case, len(documents), problems=tuple(error.detail.splitlines()))
    finally:
        _clean_up(plane, case, namespace)
    problems = [*unplaced(pods), *_apart(pods, documents), *_not_the_chart(case)]
    if plane.places and len(pods) < expected_pods(made):
        problems.append(f"{len(pods)} pods were made, expected {expected_pods(made)}")
    placed = Counter(pod["spec"].get("nodeName", "-").removeprefix(f"{namespace}-") for pod in pods)
    return Verdict(case, len(documents), len(pods), dict(sorted(placed.items())), tuple(problems))


def _not_the_chart(case: Case) -> list[str]:
    """Return what the chart makes otherwise; tried with the namespace that the manifests are written for."""
    if not HELM:
        return []
    return differences(render(case.variant), render_chart(case.variant, "triforge"))


def _install(plane: ControlPlane, case: Case, documents: list[Document], namespace: str) -> None:
    """As docs/operate.md#kubernetes says: the namespace's levels, then the chart; and the same once more, as an upgrade."""
    (labels,) = (d["metadata"]["labels"] for d in documents if d["kind"] == "Namespace")
    plane.kubectl("label", "namespace", namespace, *(f"{key}={value}" for key, value in labels.items()))  # fmt: skip
    own = [d["metadata"]["name"] for d in documents if d["kind"] == "PriorityClass"]
    plane.kubectl("delete", "priorityclass", "--ignore-not-found", *own)  # another case's
    for verb in ("install", "upgrade") if plane.places else ("install",):
        dry = [] if plane.places else ["--dry-run=server"]
        plane.helm(verb, "triforge", str(CHART), "-n", namespace, *dry, *chart_values(case.variant))


def _apply(plane: ControlPlane, documents: list[Document]) -> None:
    if not documents:
        return
    how = ["--server-side", "--validate=strict"]
    how += [] if plane.places else ["--dry-run=server"]
    levels = [d["metadata"]["labels"] for d in documents if d["kind"] == "Namespace"]
    if not any(of["pod-security.kubernetes.io/enforce"] == "privileged" for of in levels):
        how.append("--warnings-as-errors")  # which also reports deprecated fields
    text = "\n---\n".join(json.dumps(document) for document in documents)
    plane.kubectl("apply", *how, "-f", "-", given=text)


def _as_controllers_do(document: Document) -> list[Document]:
    """Pods of a LeaderWorkerSet, whose controller does not run here, as a StatefulSet of as many."""
    if document["kind"] != "LeaderWorkerSet":
        return []
    spec, name = document["spec"], document["metadata"]["name"]
    template = spec["leaderWorkerTemplate"]["workerTemplate"]
    pods = {
        "serviceName": name,
        "replicas": spec["replicas"] * spec["leaderWorkerTemplate"]["size"],
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": template["metadata"]["labels"]},
        "template": template,
    }
    metadata = {"name": name, "namespace": document["metadata"]["namespace"]}
    return [{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": pods}]


def expected_pods(documents: list[Document]) -> int:
    count = 0
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            count += document["spec"].get("replicas", 1)
        elif document["kind"] == "Job":
            count += document["spec"].get("parallelism", 1)
    return count


def _add_volumes(plane: ControlPlane, documents: list[Document], namespace: str) -> None:
    """Add a volume for every claim, in reach of every node."""
    claims = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "PersistentVolumeClaim"}  # fmt: skip
    for document in documents:
        for template in document.get("spec", {}).get("volumeClaimTemplates", []):
            name = f"{template['metadata']['name']}-{document['metadata']['name']}-0"
            claims[name] = template["spec"]
    volumes = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace}-{name}"},
            "spec": {
                "capacity": spec["resources"]["requests"],
                "accessModes": spec["accessModes"],
                "claimRef": {"namespace": namespace, "name": name},
                "nfs": {"server": "127.0.0.1", "path": "/"},
            },
        }
        for name, spec in claims.items()
    ]
    plane.kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": volumes}))  # fmt: skip


def _settled(plane: ControlPlane, documents: list[Document], namespace: str) -> list[dict[str, Any]]:  # fmt: skip
    """Return the pods, when all have a node, or when those without one have waited."""
    begin = time.monotonic()
    waiting: float | None = None
    while True:
        pods = plane.list("pods", "-n", namespace)
        complete = len(pods) == expected_pods(documents)
        if complete and all("nodeName" in pod["spec"] for pod in pods):
            return pods
        now = time.monotonic()
        refused = [pod for pod in pods if _why(pod)]
        if complete and refused and len(refused) + _placed(pods) == len(pods):
            waiting = waiting or now
            if now - waiting > _SETTLE_S:
                return pods
        if now - begin > _PLACE_S:
            return pods
        time.sleep(0.5)


def _placed(pods: list[dict[str, Any]]) -> int:
    return sum("nodeName" in pod["spec"] for pod in pods)


def _why(pod: dict[str, Any]) -> str:
    """Return what the scheduler says of a pod that it cannot place."""
    if "nodeName" in pod["spec"]:
        return ""
    found = [c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"]
    return str(found[0].get("message", "")) if found else ""


def unplaced(pods: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each pod without a node."""
    return [
        f"{pod['metadata']['name']} is Pending: {_why(pod) or 'not looked at'}"
        for pod in pods
        if "nodeName" not in pod["spec"]
    ]


def _apart(pods: list[dict[str, Any]], documents: list[Document]) -> list[str]:
    """Claims for one node that pods on several mount."""
    once = {d["metadata"]["name"] for d in documents if d["kind"] == "PersistentVolumeClaim" and d["spec"]["accessModes"] == ["ReadWriteOnce"]}  # fmt: skip
    where: dict[str, set[str]] = {}
    for pod in pods:
        for volume in pod["spec"].get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim in once and "nodeName" in pod["spec"]:
                where.setdefault(claim, set()).add(pod["spec"]["nodeName"])
    return [f"claim {claim} (ReadWriteOnce) is mounted on {len(nodes)} nodes" for claim, nodes in where.items() if len(nodes) > 1]  # fmt: skip


def _clean_up(plane: ControlPlane, case: Case, namespace: str) -> None:
    """Nothing of it may take room from the next one: no pod is made in a namespace that goes, and none waits for a node."""
    if case.chart:
        with contextlib.suppress(UnavailableError):
            plane.helm("uninstall", "triforge", "-n", namespace)
    with contextlib.suppress(UnavailableError):
        plane.kubectl("delete", "namespace", namespace, "--wait=false")
        plane.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", "--wait=false")  # fmt: skip
    names = [node["metadata"]["name"] for node in plane.list("nodes")]
    own = [name for name in names if name.startswith(f"{namespace}-")]
    if own:
        plane.kubectl("delete", "node", *own, "--wait=false")
