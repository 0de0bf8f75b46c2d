"""The manifests as `kubectl apply -k` would send them: an overlay, with components, in a namespace."""

from __future__ import annotations

import os
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
Document = dict[str, Any]


def folders(kind: str) -> list[str]:
    """Names under `k8s/overlays` or `k8s/components`."""
    return sorted(path.name for path in (K8S / kind).iterdir())


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
        done = subprocess.run(  # noqa: S603 (no shell; the words are ours)
            [KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise ConfigError(f"k8s/: {'+'.join(variant)} cannot be rendered: {done.stderr.strip()}")
    return list(yaml.safe_load_all(done.stdout))
