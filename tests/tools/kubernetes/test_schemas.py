"""The documents that `kubectl apply -k` would send are valid to the letter: built-in kinds and those that others define."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate import utils as validator  # type: ignore[import-untyped]
from kubernetes_validate.utils import ValidationError  # type: ignore[import-untyped]

from tests.tools.kubernetes.rendering import (
    COMPONENTS,
    OVERLAYS,
    VARIANTS,
    Document,
    containers,
    named,
    of_kind,
    quantity,
    render,
    variant_name,
    workloads,
)

KUBERNETES = "1.36"
CRDS = Path(__file__).with_name("crds")
GROUPS = {
    "keda.sh/v1alpha1": "keda",
    "leaderworkerset.x-k8s.io/v1": "leaderworkerset",
    "monitoring.coreos.com/v1": "prometheus",
    "gateway.networking.k8s.io/v1": "gateway",
}
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)

_valid: set[str] = set()  # what most variants share is looked at once


@cache
def schemas(group: str) -> dict[str, Any]:
    """Schemas of the `spec` of a group's kinds."""
    found: dict[str, Any] = yaml.safe_load((CRDS / f"{group}.yaml").read_text())
    return found


def validate(document: Document) -> None:
    """Raises what is wrong with a document."""
    text = json.dumps(document)
    if text in _valid:
        return
    group = GROUPS.get(document["apiVersion"])
    if group is None:
        validator.validate(document, KUBERNETES, strict=True)
    else:
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(document["spec"], schemas(group)[document["kind"]])
    if document["kind"] == "LeaderWorkerSet":
        template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        validator.validate({**pod, "template": template}, KUBERNETES, strict=True)
    _valid.add(text)


@every_variant
def test_what_kubectl_would_apply_is_valid_to_the_letter(variant: tuple[str, ...]) -> None:
    for document in render(variant):
        try:
            validate(document)
        except (ValidationError, jsonschema.ValidationError) as error:
            pytest.fail(f"{named(document)}: {error.message}")


@every_variant
def test_names_are_used_once_and_everything_is_in_our_namespace(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    names = [named(d) for d in documents]
    assert len(names) == len(set(names))
    for document in documents:
        if document["kind"] not in ("Namespace", "PriorityClass"):  # these are the cluster's
            assert document["metadata"]["namespace"] == "triforge", named(document)


@every_variant
def test_quantities_are_quantities_and_requests_are_within_limits(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    for document, _, container in containers(documents):
        requests, limits = (container["resources"].get(k, {}) for k in ("requests", "limits"))
        assert {"cpu", "memory", "ephemeral-storage"} <= set(requests), named(document)
        assert "memory" in limits, named(document)
        for name, given in requests.items():
            assert quantity(given) <= quantity(limits.get(name, given)), named(document)
        gpus = (requests.get("nvidia.com/gpu"), limits.get("nvidia.com/gpu"))
        assert gpus[0] == gpus[1], named(document)  # Kubernetes takes no others
    for _, template in workloads(documents):
        for volume in template["spec"].get("volumes", []):
            if "sizeLimit" in volume.get("emptyDir", {}):
                assert quantity(volume["emptyDir"]["sizeLimit"]) > 0
    for claim in of_kind(documents, "PersistentVolumeClaim"):
        assert quantity(claim["spec"]["resources"]["requests"]["storage"]) > 2**30


def test_the_overlay_for_cpus_has_its_place_on_a_small_node() -> None:
    cores = memory = 0.0
    for document, _, container in containers(render(("cpu",))):
        requests = container["resources"]["requests"]
        pods = document["spec"].get("replicas", 1)
        cores += pods * quantity(requests["cpu"])
        memory += pods * quantity(requests["memory"])
    assert cores < 1.8  # of two, which others need a part of
    assert memory < 7 * 2**30
    page = (CRDS.parents[3] / "docs" / "operate.md").read_text()
    assert f"{cores:.1f} cores and {memory / 2**30:.1f} GiB" in page


def test_no_overlay_has_a_component_already() -> None:
    for overlay in OVERLAYS:  # Kustomize refuses the second one by a sentence about ids
        assert render((overlay, "autoscaling"))


def test_every_component_is_tried_and_explained() -> None:
    tried = {name for variant in VARIANTS for name in variant[1:]}
    assert tried == set(COMPONENTS)
    page = (CRDS.parents[3] / "docs" / "operate.md").read_text()
    for name in COMPONENTS:
        assert f"`{name}`" in page, name
