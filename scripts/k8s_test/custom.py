"""Kinds of others: their own definitions where a folder has them, else ones that take any spec."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from scripts.k8s_test.control_plane import ControlPlane
from triforge.errors import ConfigError

_KINDS = {  # group/version: plural, kind
    "keda.sh/v1alpha1": [("scaledobjects", "ScaledObject"), ("triggerauthentications", "TriggerAuthentication")],
    "leaderworkerset.x-k8s.io/v1": [("leaderworkersets", "LeaderWorkerSet")],
    "monitoring.coreos.com/v1": [
        ("servicemonitors", "ServiceMonitor"), ("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule"),
    ],
    "gateway.networking.k8s.io/v1": [("httproutes", "HTTPRoute")],
}  # fmt: skip
_VARIABLE = "K8S_TEST_CRDS"


def install(plane: ControlPlane) -> str:
    """Make the API server know them; returns in a sentence whose definitions they are.

    Raises:
        ConfigError: the folder has no definitions.
    """
    given = os.environ.get(_VARIABLE)
    if given:
        files = sorted(Path(given).glob("*.yaml"))
        if not files:
            raise ConfigError(f"{_VARIABLE}: given {given}, expected a folder with CustomResourceDefinitions (*.yaml)")  # fmt: skip
        for file in files:
            plane.kubectl("apply", "--server-side", "-f", str(file))
        sentence = f"custom resources: {len(files)} definitions from {given}"
    else:
        for group_version, kinds in _KINDS.items():
            for plural, kind in kinds:
                plane.kubectl("apply", "-f", "-", given=json.dumps(_anything(group_version, plural, kind)))  # fmt: skip
        sentence = f"custom resources: any spec is taken ({_VARIABLE} names no folder with the projects' own definitions)"
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
    }
    plane.kubectl("apply", "-f", "-", given=json.dumps(runtime | {"handler": "nvidia"}))
    plane.kubectl("wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout=60s")  # fmt: skip
    return sentence


def _anything(group_version: str, plural: str, kind: str) -> dict[str, Any]:
    group, version = group_version.split("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}  # fmt: skip
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    # who owns a group with this suffix demands it of everybody
    annotations = {"api-approved.kubernetes.io": "unapproved, a test's"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": annotations},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }
