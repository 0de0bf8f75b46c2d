"""The Helm chart is the overlays and components: written from them, equal to them, and strict about its values."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scripts.helm_chart.__main__ import chart
from scripts.k8s_test.cases import TOGETHER
from scripts.k8s_test.manifests import CHART, HELM, NO_HELM, differences, render_chart
from tests.tools.kubernetes.rendering import ROOT, Document, render, variant_name

helm = pytest.mark.skipif(not HELM, reason=NO_HELM)
VALUES: Document = yaml.safe_load((CHART / "values.yaml").read_text())


def rendered(folder: Path, values: Document) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    given = folder / "values.yaml"
    given.write_text(json.dumps(values))
    command = [HELM, "template", "triforge", str(CHART), "--namespace", "rl", "--values", str(given)]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_chart_is_what_its_generator_writes() -> None:
    written = chart()
    for name, text in written.items():
        assert (CHART / name).read_text() == text, f"{name} is not what the overlays say: make chart"  # fmt: skip
    there = {f"templates/{path.name}" for path in CHART.glob("templates/*.yaml")}
    assert there == {name for name in written if name.startswith("templates/")}, "make chart"


def test_its_version_is_the_project_s() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (version, version)


def test_the_default_values_and_those_of_the_docs_are_values() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    example = yaml.safe_load(page.partition("# my-values.yaml\n")[2].partition("```")[0])
    assert example["overlay"] == "gpu-cluster"
    for values in (VALUES, VALUES | example):
        jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"overlay": "gpu"}, "'gpu' is not one of"),
        ({"components": ["keeda"]}, "'keeda' is not one of"),
        ({"imgae": {"tag": "1"}}, "'imgae' was unexpected"),
        ({"replicas": {"policy-model": 2}}, "'policy-model' was unexpected"),  # it is one
        ({"engines": {"policy": {"gpus": 0}}}, "0 is less than the minimum of 1"),
        ({"storage": {"artifacts": {"size": "lots"}}}, "'lots' does not match"),
        ({"config": {"TRIFORGE_DRAIN_S": 10}}, "10 is not of type 'string'"),
        ({"resources": {"trainer": {"limits": {"cpu": "2"}}}}, "'cpu' was unexpected"),
    ],
)
def test_the_schema_refuses_unknown_and_wrong_values(values: Document, message: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=re.escape(message)):
        jsonschema.validate(VALUES | values, json.loads((CHART / "values.schema.json").read_text()))


@helm
@pytest.mark.parametrize("variant", TOGETHER, ids=variant_name)
def test_it_renders_what_kustomize_does(variant: tuple[str, ...]) -> None:
    assert differences(render(variant), render_chart(variant, "triforge")) == []


@helm
def test_without_values_only_the_namespace_is_absent(tmp_path: Path) -> None:
    documents = list(yaml.load_all(rendered(tmp_path, {}).stdout, yaml.CSafeLoader))
    kinds = [document["kind"] for document in documents]
    assert len(kinds) == len(render((VALUES["overlay"],))) - 1
    assert "Namespace" not in kinds
    assert {d["metadata"].get("namespace", "rl") for d in documents} == {"rl"}


@helm
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"components": ["rdma"]}, "given rdma, which is for the overlays gpu-cluster"),
        ({"components": ["keda", "external-redis"]}, "expected one"),
        ({"overlay": "cpu", "engines": {"reward": {"gpus": 2}}}, "engines.*.gpus"),
        ({"learners": {"policy": {"nodes": 2}}}, "set `overlay` to gpu-cluster"),
        ({"components": ["keda"], "replicas": {"judge-worker": 3}}, "autoscaling.judge-worker.min"),
    ],
)
def test_values_that_do_not_go_together_are_refused(
    tmp_path: Path, values: Document, message: str
) -> None:
    done = rendered(tmp_path, values)
    assert done.returncode != 0
    assert message in done.stderr


def at(document: Any, path: str) -> Any:
    for step in path.split("/"):
        document = document[int(step) if step.isdecimal() else step]
    return document


@helm
def test_values_reach_what_they_are_for(tmp_path: Path) -> None:
    values = {
        "overlay": "gpu-cluster",
        "components": ["ingress", "keda", "rdma", "multi-node-engine", "load-models", "monitoring"],
        "image": {"repository": "registry.example.com/rl", "tag": "2", "pullSecrets": [{"name": "registry"}]},
        "secrets": {"main": "mine"},
        "config": {"TRIFORGE_LOG": "text", "TRIFORGE_DRAIN_S": "20"},
        "models": {"policy": "Qwen/Qwen3-4B"},
        "replicas": {"engine-reward": 0},
        "resources": {"trainer": {"requests": {"memory": "3Gi"}}},
        "engines": {"reward": {"gpus": 4, "args": ["--mem-fraction-static=0.8"]}},
        "learners": {"policy": {"nodes": 4}},
        "multiNodeEngine": {"nodes": 3},
        "storage": {"artifacts": {"className": "cephfs"}, "valkey": {"size": "1Gi"}},
        "gpuNodes": {"tolerations": [{"key": "sku"}]},
        "otherNodes": {"nodeSelector": {"pool": "cpu"}},
        "ingress": {"host": "rl.example.org"},
        "autoscaling": {"rollout-worker": {"max": 64}},
        "rdma": {"resource": "vpc.amazonaws.com/efa"},
        "namespaces": {"keda": "autoscalers"},
        "priorityClasses": {"create": False},
    }  # fmt: skip
    done = rendered(tmp_path, values)
    assert done.returncode == 0, done.stderr
    found = {f"{d['kind']}/{d['metadata']['name']}": d for d in yaml.load_all(done.stdout, yaml.CSafeLoader)}  # fmt: skip
    pod, group = "spec/template/spec", "spec/leaderWorkerTemplate/workerTemplate/spec"
    expected = {
        ("Deployment/trainer", f"{pod}/containers/0/image"): "registry.example.com/rl/trainer:2",
        ("Deployment/trainer", f"{pod}/containers/0/resources/requests/memory"): "3Gi",
        ("Deployment/trainer", f"{pod}/nodeSelector"): {"pool": "cpu"},
        ("Deployment/trainer", f"{pod}/containers/0/env/0/valueFrom/secretKeyRef/name"): "mine",
        ("ServiceAccount/triforge", "imagePullSecrets"): [{"name": "registry"}],
        ("ConfigMap/triforge-env", "data/TRIFORGE_LOG"): "text",
        ("ConfigMap/triforge-env", "data/TRIFORGE_DRAIN_S"): "20",
        ("ConfigMap/triforge-env", "data/TRIFORGE_AUTH"): "keys",
        ("Job/load-models", f"{pod}/containers/0/env/0/value"): "Qwen/Qwen3-4B",
        ("Job/load-models", f"{pod}/containers/0/env/1/value"): "Qwen/Qwen3-8B",
        ("StatefulSet/engine-reward", "spec/replicas"): 0,
        ("StatefulSet/engine-reward", f"{pod}/containers/0/args/4"): "--tp=4",
        ("StatefulSet/engine-reward", f"{pod}/containers/0/args/9"): "--mem-fraction-static=0.8",
        ("StatefulSet/engine-reward", f"{pod}/tolerations"): [{"key": "sku"}],
        ("StatefulSet/valkey", "spec/volumeClaimTemplates/0/spec/resources/requests/storage"): "1Gi",
        ("Job/learner-policy", "spec/completions"): 4,
        ("LeaderWorkerSet/engine-policy-group", "spec/leaderWorkerTemplate/size"): 3,
        ("LeaderWorkerSet/engine-policy-group", f"{group}/containers/0/args/4"): "--tp=24",
        ("PersistentVolumeClaim/artifacts", "spec/storageClassName"): "cephfs",
        ("Ingress/triforge", "spec/rules/0/host"): "rl.example.org",
        ("ScaledObject/rollout-worker", "spec/maxReplicaCount"): 64,
        ("ScaledObject/rollout-worker", "spec/triggers/0/metadata/address"): "valkey.rl.svc:6379",
    }  # fmt: skip
    for (name, path), value in expected.items():
        assert at(found[name], path) == value, (name, path)
    script = at(found["Job/learner-policy"], f"{pod}/containers/0/args/0")
    assert "--nnodes=4 --nproc-per-node=8 " in script
    assert at(found["StatefulSet/engine-reward"], f"{pod}/containers/0/resources/limits")["nvidia.com/gpu"] == "4"  # fmt: skip
    assert "vpc.amazonaws.com/efa" in at(found["Job/learner-policy"], f"{pod}/containers/0/resources/limits")  # fmt: skip
    assert not [name for name in found if name.startswith("PriorityClass/")]
