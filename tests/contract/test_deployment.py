"""The Kubernetes manifests and the code name the same services, ports, variables and commands."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kubernetes_validate import utils as validator  # type: ignore[import-untyped]

from triforge.config import Settings
from triforge.queues import ADAPT_QUEUE, JUDGE_QUEUE, ROLLOUT_QUEUE

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted(p.name for p in (ROOT / "k8s" / "overlays").iterdir())
COMPONENTS = sorted(p.name for p in (ROOT / "k8s" / "components").iterdir())
KNOWN = {f"TRIFORGE_{name.upper()}" for name in Settings.model_fields}
CUSTOM = {"ScaledObject", "ServiceMonitor", "PodMonitor"}
KUBERNETES = "1.36"
Document = dict[str, Any]

_rendered: dict[str, list[Document]] = {}


def render(overlay: str, *components: str, folder: Path | None = None) -> list[Document]:
    """What `kubectl apply -k` would send."""
    key = "+".join((overlay, *components))
    if key not in _rendered:
        path = ROOT / "k8s" / "overlays" / overlay
        if components:
            assert folder is not None
            # kustomize takes relative paths only
            up = Path(*[".."] * len(folder.resolve().parts[1:]), *ROOT.parts[1:], "k8s")
            lines = ["kind: Kustomization", f"resources: [{up}/overlays/{overlay}]", "components:"]
            lines += [f"  - {up}/components/{name}" for name in components]
            (folder / "kustomization.yaml").write_text("\n".join(lines) + "\n")
            path = folder
        kubectl = Path(sys.executable).parent / "kubectl"
        done = subprocess.run(
            [kubectl, "kustomize", str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        _rendered[key] = list(yaml.safe_load_all(done.stdout))
    return _rendered[key]


def of_kind(documents: list[Document], *kinds: str) -> list[Document]:
    return [d for d in documents if d["kind"] in kinds]


def named(document: Document) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def workloads(documents: list[Document]) -> list[Document]:
    return of_kind(documents, "Deployment", "StatefulSet", "Job")


def containers(documents: list[Document]) -> Iterator[tuple[Document, Document]]:
    for document in workloads(documents):
        for container in document["spec"]["template"]["spec"]["containers"]:
            yield document, container


# ---- kubernetes ----


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_kubectl_would_apply_is_valid_to_the_letter(overlay: str) -> None:
    for document in render(overlay):
        validator.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_are_used_once_and_everything_is_in_our_namespace(overlay: str) -> None:
    documents = render(overlay)
    names = [named(d) for d in documents]
    assert len(names) == len(set(names))
    for document in documents:
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "triforge"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_what_they_are_meant_for(overlay: str) -> None:
    documents = render(overlay)
    labels = {
        d["metadata"]["name"]: d["spec"]["template"]["metadata"]["labels"]
        for d in workloads(documents)
    }
    for document in of_kind(documents, "Deployment", "StatefulSet"):
        chosen = document["spec"]["selector"]["matchLabels"]
        assert chosen.items() <= labels[document["metadata"]["name"]].items()
    for document in of_kind(documents, "Service"):
        chosen = document["spec"]["selector"].items()
        assert [n for n, found in labels.items() if chosen <= found.items()] == [
            document["metadata"]["name"]
        ]
    for document in of_kind(documents, "PodDisruptionBudget", "NetworkPolicy"):
        spec = document["spec"]
        pods = [spec.get("selector") or spec["podSelector"]]
        for rule in spec.get("ingress", []):
            pods += [peer["podSelector"] for peer in rule["from"]]
        for pod in pods:
            wanted = pod.get("matchLabels", {}).items()
            assert any(wanted <= found.items() for found in labels.values()), named(document)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_and_addresses_fit_together(overlay: str) -> None:
    documents = render(overlay)
    data = next(iter(of_kind(documents, "ConfigMap")))["data"]
    services = {d["metadata"]["name"]: d["spec"]["ports"][0] for d in of_kind(documents, "Service")}
    for variable, value in data.items():
        if variable.endswith("_URL") and "://" in value:
            url = urlsplit(value)
            assert services[str(url.hostname)]["port"] == url.port, variable
    for document, container in containers(documents):
        ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
        service = services.get(document["metadata"]["name"])
        if service is not None:
            assert ports[service["targetPort"]] == service["port"], named(document)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            found = container.get(probe, {})
            for way in ("httpGet", "tcpSocket"):
                if way in found:
                    assert found[way]["port"] in ports, named(document)
            path = found.get("httpGet", {}).get("path")
            assert path in (None, "/healthz", "/readyz", "/ready"), named(document)
            is_engine = document["metadata"]["name"].startswith("engine-")
            assert path != "/ready" or is_engine  # rooms answer /readyz, engines /ready


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_secrets_and_claims_exist(overlay: str) -> None:
    documents = render(overlay)
    data = next(iter(of_kind(documents, "ConfigMap")))["data"]
    assert set(data) <= KNOWN
    claims = {d["metadata"]["name"] for d in of_kind(documents, "PersistentVolumeClaim")}
    secrets = {"POSTGRES_PASSWORD", "TRIFORGE_DATABASE_URL", "TRIFORGE_API_KEY", "TRIFORGE_ADMIN_API_KEY"}  # fmt: skip
    for document, container in containers(documents):
        for entry in container.get("env", []):
            if entry["name"].startswith("TRIFORGE_"):
                assert entry["name"] in KNOWN, named(document)
            reference = entry.get("valueFrom", {}).get("secretKeyRef")
            assert reference is None or reference["key"] in secrets
        volumes = document["spec"]["template"]["spec"].get("volumes", [])
        mounted = {v["name"] for v in container.get("volumeMounts", [])}
        templates = document["spec"].get("volumeClaimTemplates", [])
        assert mounted <= {v["name"] for v in volumes} | {t["metadata"]["name"] for t in templates}
        for volume in volumes:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in claims


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_keeps_to_the_restricted_standard_and_ends_gracefully(overlay: str) -> None:
    for document, container in containers(render(overlay)):
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"], named(document)
        assert "cpu" in container["resources"]["requests"], named(document)
        if document["kind"] == "Deployment":  # longer than the workers' soft shutdown
            assert pod["terminationGracePeriodSeconds"] > 10, named(document)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_command_is_a_module_of_ours_or_of_the_image(overlay: str) -> None:
    for document, container in containers(render(overlay)):
        command = container.get("command", [])
        if command[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(command[2]) is not None, named(document)


def test_components_fit_the_overlays(tmp_path: Path) -> None:
    documents = render("cpu", *COMPONENTS, folder=tmp_path)
    names = {named(d) for d in documents}
    labels = {d["metadata"]["labels"].get("app.kubernetes.io/name") for d in workloads(documents)}
    for document in documents:
        if document["kind"] not in CUSTOM:
            validator.validate(document, KUBERNETES, strict=True)
    for scaled in of_kind(documents, "ScaledObject"):
        assert f"Deployment/{scaled['spec']['scaleTargetRef']['name']}" in names
        lists = {t["metadata"]["listName"] for t in scaled["spec"]["triggers"]}
        assert lists <= {ROLLOUT_QUEUE, JUDGE_QUEUE, ADAPT_QUEUE}
    for monitor in of_kind(documents, "ServiceMonitor", "PodMonitor"):
        (rule,) = monitor["spec"]["selector"]["matchExpressions"]
        assert set(rule["values"]) <= labels
    (ingress,) = of_kind(documents, "Ingress")
    for path in ingress["spec"]["rules"][0]["http"]["paths"]:
        assert f"Service/{path['backend']['service']['name']}" in names
