"""Claims exist, are mounted where they are needed and nowhere else, and are in reach of every pod that mounts them."""

from __future__ import annotations

import re

import pytest

from tests.tools.kubernetes.rendering import (
    NAME,
    VARIANTS,
    Document,
    containers,
    environment,
    named,
    of_kind,
    quantity,
    render,
    variant_name,
    workloads,
)
from triforge.config.sections import RunSection

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
# Who opens the artifact store (`ArtifactStore(settings.artifacts_url)` in services/*/__main__.py); engines read its folders of weights.
READERS = {"policy-model", "reward-model", "rewriter-model"}
WRITERS = {"trainer", "rollout-worker", "learner-policy", "learner-reward", "toolbox"}
SHARED = "triforge.dev/volumes"
ENGINES = ("engine-policy", "engine-reward", "engine-rewriter")


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


def test_models_are_fetched_to_the_folders_that_services_and_runs_read() -> None:
    documents = render(("gpu-single-node", "autoscaling", "external-redis", "s3", "load-models"))
    found = {d["metadata"]["name"]: c for d, _, c in containers(documents)}
    (script,) = found["load-models"]["args"]
    made = set(re.findall(r"(?:--local-dir|run\.toml) (/models/\S+)", script))
    read = {environment(documents, c).get("TRIFORGE_MODEL") for c in found.values()} - {None}
    assert made == read | {environment(documents, found["trainer"])["TRIFORGE_CONFIG"]}


@every_variant
def test_only_who_reads_or_writes_artifacts_mounts_them(variant: tuple[str, ...]) -> None:
    for document, pod, container in containers(render(variant)):
        name = pod_name(document)
        mounts = {m["name"]: m for m in container.get("volumeMounts", [])}
        reads = name in READERS or name.startswith("engine-")
        assert ("artifacts" in mounts) is (reads or name in WRITERS), name
        if "artifacts" in mounts:
            assert mounts["artifacts"].get("readOnly", False) is reads, name
        # Read-only is set on the mount. Set on the claim, some drivers attach the disk so, also for those who write.
        for volume in pod.get("volumes", []):
            assert "readOnly" not in volume.get("persistentVolumeClaim", {}), name


def neighbours(pod: Document) -> tuple[list[Document], list[Document]]:
    """Return the pods that a pod must share a node with, and those it prefers to: label selectors of terms about nodes."""
    found = pod.get("affinity", {}).get("podAffinity", {})
    must = found.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    likes = [t["podAffinityTerm"] for t in found.get("preferredDuringSchedulingIgnoredDuringExecution", [])]  # fmt: skip
    assert {t["topologyKey"] for t in (*must, *likes)} <= {"kubernetes.io/hostname"}
    return [t["labelSelector"] for t in must], [t["labelSelector"] for t in likes]


@every_variant
def test_pods_keep_together_where_their_volumes_can_be_mounted_on_one_node_only(
    variant: tuple[str, ...],
) -> None:
    templates = [template for _, template in workloads(render(variant))]
    choose = {t["metadata"]["labels"][NAME] for t in templates if SHARED in t["metadata"]["labels"]}
    if variant[0] == "gpu-cluster":
        assert choose == set()
    else:  # those that ask for most: a node chosen by another may have no room for them
        assert choose == {*ENGINES, "learner-policy", "learner-reward"}
    for template in templates:
        labels, (must, likes) = template["metadata"]["labels"], neighbours(template["spec"])
        name = labels[NAME]
        shares = any("persistentVolumeClaim" in volume for volume in template["spec"]["volumes"])
        if name in ("toolbox", "load-models"):  # of components, which know no overlay
            assert must == [{"matchLabels": {NAME: "trainer"}}]
        elif name in choose:
            assert (must, likes) == ([], [{"matchLabels": {SHARED: "shared"}}])
        elif choose and shares:
            assert (must, likes) == ([{"matchLabels": {SHARED: "shared"}}], [])
        else:  # no pod that may have to live elsewhere is pulled to the others
            assert must == [], name


@pytest.mark.parametrize(("overlay", "parameters", "runs"), [("gpu-cluster", 8e9, 2), ("gpu-single-node", 4e9, 1)])  # fmt: skip
def test_artifacts_hold_the_versions_that_runs_keep(
    overlay: str, parameters: float, runs: int
) -> None:
    claims = of_kind(render((overlay,)), "PersistentVolumeClaim")
    (artifacts,) = [d["spec"] for d in claims if d["metadata"]["name"] == "artifacts"]
    versions = RunSection.model_fields["keep_checkpoints"].default + 1  # the oldest goes last
    needed = runs * 2 * versions * 12 * parameters  # two models, float32 and two moments
    assert quantity(artifacts["resources"]["requests"]["storage"]) > needed
