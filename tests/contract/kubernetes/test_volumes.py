"""Claims exist, are mounted where they are needed and nowhere else, and are in reach of every pod that mounts them."""

from __future__ import annotations

import pytest

from tests.contract.kubernetes.rendering import (
    VARIANTS,
    Document,
    chosen,
    containers,
    named,
    of_kind,
    render,
    variant_name,
    workloads,
)

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
# Who opens the artifact store (`ArtifactStore(settings.artifacts_url)` in services/*/__main__.py); engines read its folders of weights.
READERS = {"policy-model", "reward-model", "rewriter-model"}
WRITERS = {"trainer", "rollout-worker", "learner-policy", "learner-reward", "toolbox"}


def pod_name(document: Document) -> str:
    return str(document["metadata"]["name"]).removesuffix("-group")


@every_variant
def test_volumes_and_claims_exist_and_one_node_is_enough_for_one_node(
    variant: tuple[str, ...],
) -> None:
    documents = render(variant)
    claims = {d["metadata"]["name"]: d["spec"] for d in of_kind(documents, "PersistentVolumeClaim")}
    for document, template in workloads(documents):
        volumes = {v["name"]: v for v in template["spec"].get("volumes", [])}
        made = {t["metadata"]["name"] for t in document["spec"].get("volumeClaimTemplates", [])}
        mounted = {
            m["name"] for c in template["spec"]["containers"] for m in c.get("volumeMounts", [])
        }
        assert mounted == set(volumes) | made, named(document)  # fmt: skip
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or claim["claimName"] in claims, named(document)
    mode = "ReadWriteMany" if variant[0] == "gpu-cluster" else "ReadWriteOnce"
    assert {claim["accessModes"][0] for claim in claims.values()} == {mode}


@every_variant
def test_only_who_reads_or_writes_artifacts_mounts_them(variant: tuple[str, ...]) -> None:
    for document, pod, container in containers(render(variant)):
        name = pod_name(document)
        mounts = {m["name"]: m for m in container.get("volumeMounts", [])}
        reads = name in READERS or name.startswith("engine-")
        assert ("artifacts" in mounts) is (reads or name in WRITERS), name
        if "artifacts" in mounts:
            assert mounts["artifacts"].get("readOnly", False) is reads, name
        # Read-only is said of the mount. Said of the claim, some drivers attach the disk so, also for those who write.
        for volume in pod.get("volumes", []):
            assert "readOnly" not in volume.get("persistentVolumeClaim", {}), name


@every_variant
def test_pods_keep_together_where_their_volumes_can_be_mounted_on_one_node_only(
    variant: tuple[str, ...],
) -> None:
    for document, template in workloads(render(variant)):
        pod, labels = template["spec"], template["metadata"]["labels"]
        shares = any("persistentVolumeClaim" in volume for volume in pod.get("volumes", []))
        found = pod.get("affinity", {}).get("podAffinity", {})
        together = variant[0] != "gpu-cluster" and shares
        assert bool(found) is together, named(document)
        if together:
            (rule,) = found["requiredDuringSchedulingIgnoredDuringExecution"]
            # it chooses itself as well: the first of all would otherwise wait for another
            assert chosen(rule["labelSelector"], labels)
            assert rule["topologyKey"] == "kubernetes.io/hostname"
        else:  # no pod that may have to live elsewhere pulls at the others
            assert "triforge.dev/volumes" not in labels
