"""The manifests as `kubectl apply -k` would send them: an overlay, with components, in a namespace; and the chart of the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from triforge.errors import ConfigError

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
KUBECTL = Path(sys.executable).parent / "kubectl"
CHART = K8S / "helm" / "triforge"
HELM = os.environ.get("HELM") or shutil.which("helm")
NO_HELM = "there is no helm on PATH, and HELM names none (https://helm.sh/docs/intro/install)"
Document = dict[str, Any]


def folders(kind: str) -> list[str]:
    """Names under `k8s/overlays` or `k8s/components`."""
    return sorted(path.name for path in (K8S / kind).iterdir())


def chart_values(variant: tuple[str, ...]) -> list[str]:
    """Helm's options for an overlay with the components behind it."""
    overlay, *components = variant
    chosen = [f"components={{{','.join(components)}}}"] if components else []
    return [word for given in [f"overlay={overlay}", *chosen] for word in ("--set", given)]


def render(
    variant: tuple[str, ...], namespace: str | None = None, more: Document | None = None
) -> list[Document]:
    """Documents of an overlay with the components behind it, in a kustomization with `more` fields.

    Raises:
        ConfigError: Kustomize refuses the combination; the sentence is its own.
    """
    overlay, *components = variant
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        above = os.path.relpath(K8S, folder)  # Kustomize wants relative paths
        kustomization = {
            "kind": "Kustomization",
            "resources": [f"{above}/overlays/{overlay}"],
            "components": [f"{above}/components/{name}" for name in components],
        }
        kustomization |= ({"namespace": namespace} if namespace else {}) | (more or {})
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return _rendered(variant, [str(KUBECTL), "kustomize", str(folder)])


def render_chart(variant: tuple[str, ...], namespace: str) -> list[Document]:
    """Return the same documents, of the Helm chart.

    Raises:
        ConfigError: the chart refuses the values; the sentence is its own.
    """
    options = ["--namespace", namespace, "--set", "namespace.create=true", *chart_values(variant)]
    return _rendered(variant, [HELM or "helm", "template", "triforge", str(CHART), *options])


def _rendered(variant: tuple[str, ...], command: list[str]) -> list[Document]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no shell; the words are ours)
    if done.returncode:
        raise ConfigError(f"k8s/: {'+'.join(variant)} cannot be rendered: {done.stderr.strip()}")
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def differences(ours: list[Document], chart: list[Document]) -> list[str]:
    """Objects that are not the same in both."""
    one, other = ({(d["kind"], d["metadata"]["name"]): d for d in some} for some in (ours, chart))
    return [f"{'/'.join(key)} is not the chart's" for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]  # fmt: skip
