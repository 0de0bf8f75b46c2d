"""Every pod keeps to the Pod Security standard "restricted", and what the component `code` asks beyond it is exactly known."""

from __future__ import annotations

import pytest

from tests.tools.kubernetes.rendering import (
    VARIANTS,
    Document,
    named,
    of_kind,
    render,
    variant_name,
    workloads,
)

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
LEVEL = "pod-security.kubernetes.io/enforce"

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}  # fmt: skip
_DEFAULT = {"type": "RuntimeDefault"}


def violations(pod: Document) -> set[str]:
    """Return the fields of a pod's spec that "restricted" (which holds "baseline") forbids, of those that our manifests set."""
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)}
    for volume in pod.get("volumes", []):
        found |= {f"volume {kind}" for kind in set(volume) - {"name"} - _VOLUMES}
    inherited = pod.get("securityContext", {})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = inherited | container.get("securityContext", {})
        allowed = {
            "privileged": not own.get("privileged"),
            "procMount": own.get("procMount", "Default") == "Default",
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": own.get("runAsNonRoot") is True and own.get("runAsUser") != 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "appArmorProfile": own.get("appArmorProfile", _DEFAULT) == _DEFAULT,
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        found |= {name for name, fine in allowed.items() if not fine}
    return found


# What the component `code` loosens, and for whom: those that run programs of a model.
CODE = {"seccompProfile", "appArmorProfile", "procMount"}
CODE_PODS = {"env-adapter", "rollout-worker", "adapt-worker", "judge-worker"}


@every_variant
def test_every_pod_keeps_to_the_restricted_standard(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    loosened = CODE_PODS if "code" in variant else set()
    for document, template in workloads(documents):
        expected = CODE if document["metadata"]["name"] in loosened else set()
        assert violations(template["spec"]) == expected, named(document)
        if expected:
            assert template["spec"]["hostUsers"] is False
    (namespace,) = of_kind(documents, "Namespace")
    labels = namespace["metadata"]["labels"]
    assert labels[LEVEL] == ("privileged" if loosened else "restricted")
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"
    assert labels["pod-security.kubernetes.io/audit"] == "restricted"


@every_variant
def test_no_pod_has_a_token_or_writes_where_it_need_not(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    (account,) = of_kind(documents, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    for document, template in workloads(documents):
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] == account["metadata"]["name"]
        # A Service called triforge-... would otherwise bring variables that the settings refuse.
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            writes = container["image"].startswith("lmsysorg/sglang:")  # compiles at its start
            assert container["securityContext"]["readOnlyRootFilesystem"] is not writes, named(
                document
            )
