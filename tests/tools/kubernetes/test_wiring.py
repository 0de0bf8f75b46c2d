"""Names that schemas do not check: the manifests, the code, compose and the docs name the same things, and all targets exist."""

from __future__ import annotations

import importlib.util
import re
from urllib.parse import urlsplit

import pytest
import yaml

import triforge
from scripts.k8s_test import manifests
from services.policy.engines.discovery import parse_sources
from tests.tools.kubernetes.rendering import (
    NAME,
    OVERLAYS,
    ROOT,
    VARIANTS,
    Document,
    chosen,
    containers,
    environment,
    named,
    of_kind,
    render,
    variant_name,
    workloads,
)
from triforge.broker import ADAPT_QUEUE, JUDGE_QUEUE, ROLLOUT_QUEUE
from triforge.config import Settings

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
# Parts of which there must never be two: each holds something alone.
ALONE = {"policy-model", "reward-model", "rewriter-model", "trainer"}
QUEUES = {"rollout-worker": ROLLOUT_QUEUE, "judge-worker": JUDGE_QUEUE, "adapt-worker": ADAPT_QUEUE}
# Variables of others' programs that manifests set.
FOREIGN = {
    "OMP_NUM_THREADS",
    "POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD", "PGDATA", "HOME", "USER", "HF_HUB_OFFLINE", "NCCL_DEBUG",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "LOCAL_ENGINE_API_KEY", "LOCAL_ENGINE_ADMIN_API_KEY",
    "POLICY_MODEL", "REWARD_MODEL", "REWRITER_MODEL", "HF_HOME", "HF_TOKEN", "AWS_DEFAULT_REGION", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG",
    "NODE_INDEX",
}  # fmt: skip


def services(documents: list[Document]) -> dict[str, Document]:
    return {d["metadata"]["name"]: d["spec"] for d in of_kind(documents, "Service")}


@every_variant
def test_selectors_find_what_they_are_meant_for(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    labels = {named(d): template["metadata"]["labels"] for d, template in workloads(documents)}
    for document in of_kind(documents, "Deployment", "StatefulSet"):
        assert chosen(document["spec"]["selector"], labels[named(document)])
    for name, service in services(documents).items():
        found = [
            key for key, own in labels.items() if chosen({"matchLabels": service["selector"]}, own)
        ]
        assert len(found) == 1, f"{name} chooses {found}"
        assert found[0].partition("/")[2] in (name, f"{name}-group")
    for document in of_kind(documents, "PodDisruptionBudget"):
        found = [key for key, own in labels.items() if chosen(document["spec"]["selector"], own)]
        assert len(found) == 1, named(document)
        # maxUnavailable asks the owner how many there should be, and a Job does not know
        assert found[0].startswith(("Deployment/", "StatefulSet/")), named(document)
    for document in of_kind(documents, "ServiceMonitor", "PodMonitor"):
        (rule,) = document["spec"]["selector"]["matchExpressions"]
        names = {own[NAME] for own in labels.values()}
        assert rule["key"] == NAME
        assert set(rule["values"]) <= names, named(document)


@every_variant
def test_ports_and_addresses_fit_together(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    found = services(documents)
    for document, template in workloads(documents):
        name = template["metadata"]["labels"][NAME]
        pod = template["spec"]
        ports = {p["name"]: p["containerPort"] for p in pod["containers"][0].get("ports", [])}
        assert len(ports) == len(set(ports.values())), named(document)
        if name in found:
            for port in found[name]["ports"]:
                assert ports[port["targetPort"]] == port["port"], named(document)
        if document["kind"] == "StatefulSet":
            assert found[document["spec"]["serviceName"]]["clusterIP"] == "None", named(document)
        if "subdomain" in pod:
            assert found[pod["subdomain"]]["clusterIP"] == "None"
            assert found[pod["subdomain"]]["publishNotReadyAddresses"] is True
    for document, _, container in containers(documents):
        for variable, value in environment(documents, container).items():
            if (
                variable.endswith("_URL")
                and isinstance(value, str)
                and value.startswith(("http:", "redis:"))
            ):
                url = urlsplit(value)
                (port,) = found[str(url.hostname)]["ports"]
                assert port["port"] == url.port, f"{named(document)}: {variable}"  # fmt: skip


@every_variant
def test_a_policy_service_finds_every_replica_of_its_engines(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    found = services(documents)
    for document, _, container in containers(documents):
        given = environment(documents, container)
        if "TRIFORGE_ENGINES" not in given:
            continue
        (source,) = parse_sources(given["TRIFORGE_ENGINES"])
        url = urlsplit(source.url)
        assert source.by_name, named(document)
        engine = found[str(url.hostname)]
        assert url.hostname == f"engine-{given['TRIFORGE_ROLE']}"
        assert engine["clusterIP"] == "None"
        assert engine["publishNotReadyAddresses"] is True  # one that loads must be found as well
        assert engine["ports"][0]["port"] == url.port
        assert given["TRIFORGE_MODEL"] == f"/models/{given['TRIFORGE_ROLE']}"


@every_variant
def test_every_program_takes_its_environment(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    for document, _, container in containers(documents):
        given = environment(documents, container)
        unknown = {name for name in given if not name.startswith("TRIFORGE_")} - FOREIGN
        assert unknown == set(), named(document)
        if container["image"].startswith("triforge/"):
            texts = {k: v if isinstance(v, str) else "given" for k, v in given.items()}
            settings = Settings.from_env({k: v for k, v in texts.items() if k not in FOREIGN})
            if settings.metrics_port:
                ports = {p["name"]: p["containerPort"] for p in container["ports"]}
                assert ports["metrics"] == settings.metrics_port, named(document)


def keys_of(documents: list[Document]) -> set[str]:
    """Keys of the Secret that these manifests read."""
    found = set()
    for _, _, container in containers(documents):
        for entry in container.get("env", []):
            reference = entry.get("valueFrom", {}).get("secretKeyRef")
            if reference is not None and not reference.get("optional"):
                assert reference["name"] == "triforge-secrets"
                found.add(reference["key"])
    for document in of_kind(documents, "TriggerAuthentication"):
        found |= {target["key"] for target in document["spec"]["secretTargetRef"]}
    return found


def test_the_docs_make_the_secrets_that_the_manifests_read_and_no_others() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    (command,) = re.findall(
        r"kubectl -n triforge create secret generic triforge-secrets.*?```", page, re.S
    )
    made = set(re.findall(r"--from-literal=(\w+)=", command))
    for overlay in OVERLAYS:
        assert keys_of(render((overlay,))) == made
    further = {key for variant in VARIANTS for key in keys_of(render(variant))} - made
    for key in further:
        assert f"`{key}`" in page
    assert of_kind([d for v in VARIANTS for d in render(v)], "Secret") == []  # fmt: skip


def test_the_docs_move_everything_to_another_namespace() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    (lines,) = re.findall(r"```yaml\n(replacements:.*?)```", page, re.S)
    documents = manifests.render(("cpu", "keda"), "elsewhere", yaml.safe_load(lines))
    addresses = {d["spec"]["triggers"][0]["metadata"]["address"] for d in of_kind(documents, "ScaledObject")}  # fmt: skip
    assert addresses == {"valkey.elsewhere.svc:6379"}
    cluster = [d for d in documents if d["kind"] not in ("Namespace", "PriorityClass")]
    assert {d["metadata"]["namespace"] for d in cluster} == {"elsewhere"}


@every_variant
def test_what_grows_and_what_is_protected_exists(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    specs = {named(d): d["spec"] for d in documents if "spec" in d}
    scaled: list[str] = []
    for document in of_kind(documents, "HorizontalPodAutoscaler"):
        target = document["spec"]["scaleTargetRef"]
        name = f"{target['kind']}/{target['name']}"
        requests = specs[name]["template"]["spec"]["containers"][0]["resources"]["requests"]
        for metric in document["spec"]["metrics"]:
            assert metric["resource"]["name"] in requests  # utilisation is a share of the request
        assert 0 < document["spec"]["minReplicas"] < document["spec"]["maxReplicas"]
        scaled.append(name)
    for document in of_kind(documents, "ScaledObject"):
        target = document["spec"]["scaleTargetRef"]["name"]
        (trigger,) = document["spec"]["triggers"]
        assert trigger["metadata"]["listName"] == QUEUES[target]
        address = trigger["metadata"].get("address")
        if address is None:
            assert f"TriggerAuthentication/{trigger['authenticationRef']['name']}" in specs
        else:
            host, port = address.split(":")
            assert host == "valkey.triforge.svc"
            assert specs["Service/valkey"]["ports"][0]["port"] == int(port)
        assert 0 < document["spec"]["minReplicaCount"] < document["spec"]["maxReplicaCount"]
        scaled.append(f"Deployment/{target}")
    assert len(scaled) == len(set(scaled)), "two autoscalers pull at one target"
    for name in scaled:
        assert "replicas" not in specs[name], f"{name}: every apply would undo its autoscaler"
        assert name.partition("/")[2] not in ALONE
    for name in ALONE:
        if "sidecar" in variant and name == "policy-model":
            assert f"Deployment/{name}" not in specs
            continue
        assert specs[f"Deployment/{name}"]["replicas"] == 1
        assert specs[f"Deployment/{name}"]["strategy"]["type"] == "Recreate", name


def compose_images() -> set[str]:
    found = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    return {re.sub(r":\$\{TRIFORGE_TAG:-\w+\}$", "", service["image"]) for service in found}


@every_variant
def test_images_are_those_of_compose_and_their_tags_say_a_version(variant: tuple[str, ...]) -> None:
    known = compose_images()
    for document, _, container in containers(render(variant)):
        name, _, tag = container["image"].partition(":")
        if name.startswith("triforge/"):
            assert name in known, named(document)
            assert tag == triforge.__version__, f"{named(document)}: {container['image']}"
        else:
            assert container["image"] in known, named(document)
        assert re.match(r"v?\d", tag), f"{named(document)}: {tag} can mean anything tomorrow"


@every_variant
def test_every_command_is_a_module_of_ours_or_of_the_image(variant: tuple[str, ...]) -> None:
    for document, _, container in containers(render(variant)):
        if not container["image"].startswith("triforge/"):
            continue
        words = " ".join([*container.get("command", []), *map(str, container.get("args", []))])
        for module in re.findall(r"-m,? ([\w.]+)", words):
            ours = module.startswith(("services.", "demo."))
            name = module if ours else module.partition(".")[0]  # torch takes seconds to load
            assert importlib.util.find_spec(name) is not None, f"{named(document)}: {module}"


def crews(documents: list[Document]) -> list[tuple[Document, Document, str]]:
    """Indexed Jobs with their container and its script."""
    jobs = [d for d in of_kind(documents, "Job") if d["spec"].get("completionMode") == "Indexed"]
    parts = [(job, job["spec"]["template"]["spec"]["containers"][0]) for job in jobs]
    return [(job, container, container["args"][0]) for job, container in parts]


def test_the_ranks_of_a_learner_are_as_many_as_its_pods_and_gpus_and_find_each_other() -> None:
    found = crews(render(("gpu-cluster",)))
    assert [job["metadata"]["name"] for job, _, _ in found] == ["learner-policy", "learner-reward"]
    for job, container, script in found:
        name, spec = job["metadata"]["name"], job["spec"]

        def option(flag: str, script: str = script) -> str:
            (value,) = re.findall(rf"{flag}[= ]\"?([^\s\"]+)", script)
            return str(value)

        assert int(option("--nnodes")) == spec["completions"] == spec["parallelism"]
        assert option("--nproc-per-node") == container["resources"]["limits"]["nvidia.com/gpu"]
        assert option("--role") == name.removeprefix("learner-")
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        assert option("--rdzv-endpoint") == f"{name}-0.{name}:{ports['rendezvous']}"
        assert option("--local-addr") == f"{name}-$JOB_COMPLETION_INDEX.{name}"
        assert spec["template"]["spec"]["subdomain"] == name
        variables = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
        # ranks begin together, so the probe of one must outlast the wait for all: torchrun's own is ten minutes
        probe = container["livenessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] > 2 * 600
        # No index may end well, no number of restarts may end the Job, and no two of an index may run.
        assert script.rstrip().endswith("exit 1")
        assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (2**31 - 1, "Failed")
        assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_an_engine_over_several_nodes_has_a_rank_for_every_gpu() -> None:
    (document,) = of_kind(render(("gpu-cluster", "multi-node-engine")), "LeaderWorkerSet")
    parts = document["spec"]["leaderWorkerTemplate"]
    (container,) = parts["workerTemplate"]["spec"]["containers"]
    arguments = dict(argument.split("=", 1) for argument in container["args"] if "=" in argument)
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert int(arguments["--tp"]) == parts["size"] * gpus
    assert arguments["--nnodes"] == "$(LWS_GROUP_SIZE)"
    assert arguments["--node-rank"] == "$(LWS_WORKER_INDEX)"
    host, _, port = arguments["--dist-init-addr"].rpartition(":")
    assert host == "$(LWS_LEADER_ADDRESS)"
    assert int(port) in [p["containerPort"] for p in container["ports"]]
    # LeaderWorkerSet makes a Service of its own name, which must not be one of ours
    assert document["metadata"]["name"] not in services(render(("gpu-cluster",)))


def test_the_alerts_are_those_of_the_compose_stack() -> None:
    source = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    (rule,) = of_kind(render(("gpu-cluster", "monitoring")), "PrometheusRule")
    assert rule["spec"] == source, "run .venv/bin/python -m scripts.prometheus_rule"
