"""Every pod keeps to the Pod Security standard "restricted", and what the component `code` asks beyond it is exactly known."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

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
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}  # fmt: skip
_SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_PROFILES = {"RuntimeDefault", "Localhost"}
_HOOKS = ("livenessProbe", "readinessProbe", "startupProbe")


def violations(pod: Document) -> set[str]:
    """Return the fields of a pod's spec that "restricted" (which holds "baseline") forbids; the standard's own list, in its order."""
    found: set[str] = set()
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            found.add(name)
    for volume in pod.get("volumes", []):
        found |= {f"volume {kind}" for kind in set(volume) - {"name"} - _VOLUMES}
    context = pod.get("securityContext", {})
    found |= {
        f"sysctl {s['name']}" for s in context.get("sysctls", []) if s["name"] not in _SYSCTLS
    }
    found |= set(_of_context(context))
    lists = ("initContainers", "containers", "ephemeralContainers")
    for container in [c for name in lists for c in pod.get(name, [])]:
        found |= set(_of_container(container, context))
    return found


def _of_context(context: Document) -> Iterator[str]:
    """Rules that hold for the pod's and for every container's security context."""
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "") not in _SELINUX or {"user", "role"} & set(selinux):
        yield "seLinuxOptions"
    if context.get("appArmorProfile", {"type": "RuntimeDefault"})["type"] not in _PROFILES:
        yield "appArmorProfile"
    if context.get("seccompProfile", {"type": "RuntimeDefault"})["type"] not in _PROFILES:
        yield "seccompProfile"
    if context.get("runAsUser") == 0:
        yield "runAsUser 0"
    if context.get("runAsNonRoot") is False:
        yield "runAsNonRoot"


def _of_container(container: Document, pod: Document) -> Iterator[str]:
    own = container.get("securityContext", {})
    yield from _of_context(own)
    if own.get("privileged"):
        yield "privileged"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "hostPort"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {
        "NET_BIND_SERVICE"
    }:
        yield "capabilities"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield "runAsNonRoot"
    if "seccompProfile" not in own and "seccompProfile" not in pod:
        yield "seccompProfile"
    probes = [container.get(hook, {}) for hook in _HOOKS]
    probes += container.get("lifecycle", {}).values()
    if any("host" in probe.get(way, {}) for probe in probes for way in ("httpGet", "tcpSocket")):
        yield "host of a probe"


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


SLIPS: list[tuple[str, Any, str]] = [
    ("hostNetwork", True, "hostNetwork"),
    ("hostPID", True, "hostPID"),
    ("volumes", [{"name": "x", "hostPath": {"path": "/"}}], "volume hostPath"),
    ("securityContext/sysctls", [{"name": "kernel.msgmax", "value": "1"}], "sysctl kernel.msgmax"),
    ("securityContext/seLinuxOptions", {"type": "spc_t"}, "seLinuxOptions"),
    ("securityContext/windowsOptions", {"hostProcess": True}, "hostProcess"),
    ("securityContext/runAsUser", 0, "runAsUser 0"),
    ("securityContext/runAsNonRoot", None, "runAsNonRoot"),
    ("securityContext/seccompProfile", {"type": "Unconfined"}, "seccompProfile"),
    ("containers/0/securityContext/privileged", True, "privileged"),
    ("containers/0/securityContext/procMount", "Unmasked", "procMount"),
    ("containers/0/securityContext/allowPrivilegeEscalation", None, "allowPrivilegeEscalation"),
    ("containers/0/securityContext/capabilities", {"drop": ["NET_RAW"]}, "capabilities"),
    ("containers/0/securityContext/appArmorProfile", {"type": "Unconfined"}, "appArmorProfile"),
    ("containers/0/ports", [{"containerPort": 1, "hostPort": 1}], "hostPort"),
    ("containers/0/readinessProbe/httpGet/host", "127.0.0.1", "host of a probe"),
]


@pytest.mark.parametrize(("path", "value", "expected"), SLIPS, ids=[slip[2] for slip in SLIPS])
def test_a_pod_that_does_not_keep_to_it_is_seen(path: str, value: Any, expected: str) -> None:
    deployments = of_kind(render(("cpu",)), "Deployment")
    (reward,) = [d for d in deployments if d["metadata"]["name"] == "reward"]
    pod = copy.deepcopy(reward["spec"]["template"]["spec"])
    inner: Any = pod
    *way, last = path.split("/")
    for step in way:
        inner = inner[int(step) if step.isdecimal() else step]
    inner[last] = value
    assert violations(pod) == {expected}
