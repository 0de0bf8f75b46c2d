"""Network policies let through what has to be let through, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.tools.kubernetes.rendering import (
    NAME,
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

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)

REDIS, POSTGRES, ANY = 6379, 5432, 0
POLICIES = {"policy-model": 8001, "reward-model": 8011, "rewriter-model": 8021}
SERVICES = {**POLICIES, "env-adapter": 8003, "reward": 8002, "trainer": 8004}
WORKERS = ("rollout-worker", "adapt-worker", "judge-worker")
LEARNERS = ("learner-policy", "learner-reward")
# Who calls whom, at which port: the addresses that each program's own wiring (services/*/__main__.py) opens. APIs read keys
# from the database and count requests in Redis; the dashboard asks every API whether it is ready.
CALLS = {
    *((who, "postgres", POSTGRES) for who in (*SERVICES, "rollout-worker", "adapt-worker")),
    *((who, "valkey", REDIS) for who in (*SERVICES, *WORKERS, *LEARNERS)),
    *(("dashboard", service, port) for service, port in SERVICES.items()),
    *(("trainer", service, SERVICES[service]) for service in ("policy-model", "reward-model", "env-adapter")),
    ("rollout-worker", "policy-model", 8001),
    ("judge-worker", "reward-model", 8011),
    ("reward", "reward-model", 8011),
    ("adapt-worker", "rewriter-model", 8021),
    *(("toolbox", service, port) for service, port in (*SERVICES.items(), ("dashboard", 8005), ("postgres", POSTGRES), ("valkey", REDIS))),
    *(("toolbox", f"engine-{role}", 9001) for role in ("policy", "reward", "rewriter")),
    *((f"{role}-model", f"engine-{role}", 9001) for role in ("policy", "reward", "rewriter")),
}  # fmt: skip
APIS = {("env-adapter", 8003), ("trainer", 8004), ("policy-model", 8001)}
METRICS = {*SERVICES.items(), ("dashboard", 8005), *((who, 9100) for who in (*WORKERS, *LEARNERS))}
INGRESS = {"triforge.dev/ingress": "true"}


class Cluster:
    """The pods of a rendering, and what its policies say about them."""

    def __init__(self, documents: list[Document]) -> None:
        self.pods: dict[str, dict[str, str]] = {}
        self.ports: dict[str, dict[str, int]] = {}
        for _, template in workloads(documents):
            labels = template["metadata"]["labels"]
            self.pods[labels[NAME]] = labels
            found = [p for c in template["spec"]["containers"] for p in c.get("ports", [])]
            self.ports[labels[NAME]] = {p["name"]: p["containerPort"] for p in found}
        self.policies = of_kind(documents, "NetworkPolicy")

    def rules(self, name: str, way: str) -> list[Document] | None:
        """Return the rules of a pod in one direction; None where no policy restricts it."""
        own = [
            policy["spec"]
            for policy in self.policies
            if chosen(policy["spec"]["podSelector"], self.pods[name])
            and way.capitalize() in policy["spec"]["policyTypes"]
        ]
        return [rule for spec in own for rule in spec.get(way, [])] if own else None

    def numbers(self, rule: Document, server: str) -> set[int]:
        """Ports of a rule at a server, 0 for all of them."""
        if "ports" not in rule:
            return {ANY}
        named = self.ports[server]
        given = {p["port"] for p in rule["ports"] if p.get("protocol", "TCP") == "TCP"}
        return {named.get(p, -1) if isinstance(p, str) else p for p in given} - {-1}

    def out(self, client: str, server: str) -> set[int]:
        """Ports at a server to which a client may go."""
        rules = self.rules(client, "egress")
        assert rules is not None, client
        found = [r for r in rules if self._inside(r.get("to", []), server)]
        return {port for rule in found for port in self.numbers(rule, server)}

    def into(self, client: str, server: str) -> set[int]:
        """Ports of a server that lets a client in."""
        rules = self.rules(server, "ingress")
        assert rules is not None, server
        found = [r for r in rules if self._inside(r.get("from", []), client)]
        return {port for rule in found for port in self.numbers(rule, server)}

    def _inside(self, peers: list[Document], name: str) -> bool:
        assert peers, "a rule without a peer lets everybody through"
        return any(
            set(peer) == {"podSelector"} and chosen(peer["podSelector"], self.pods[name])
            for peer in peers
        )

    def from_namespaces(self, labels: dict[str, str]) -> set[tuple[str, int]]:
        """Pods and ports that a namespace with these labels may call."""
        return {
            (name, port)
            for name in self.pods
            for rule in self.rules(name, "ingress") or []
            for peer in rule["from"]
            if "podSelector" not in peer and chosen(peer.get("namespaceSelector", {"matchLabels": {"": ""}}), labels)
            for port in self.numbers(rule, name)
        }  # fmt: skip

    def to_blocks(self) -> Iterator[tuple[str, str, int]]:
        """Yield each pod with an outside address and port that it may call."""
        for name in self.pods:
            for rule in self.rules(name, "egress") or []:
                for peer in rule["to"]:
                    if "ipBlock" in peer:
                        for port in self.numbers(rule, name):
                            yield name, peer["ipBlock"]["cidr"], port


def calls_of(cluster: Cluster) -> set[tuple[str, str, int]]:
    """Return the expected calls between the pods of a cluster."""
    found = {call for call in CALLS if {call[0], call[1]} <= set(cluster.pods)}
    ranks = {name for name in cluster.pods if "rendezvous" in cluster.ports[name]}
    groups = {name for name in cluster.pods if "group" in cluster.ports[name]}
    return found | {(name, name, ANY) for name in ranks | groups}


@every_variant
def test_pods_reach_the_services_that_they_call_and_no_others(variant: tuple[str, ...]) -> None:
    cluster = Cluster(render(variant))
    reached = {
        (client, server, port)
        for client in cluster.pods
        for server in cluster.pods
        for port in cluster.out(client, server) & cluster.into(client, server)
    }
    broadcasts = {
        (*pair, ANY)
        for role in ("policy", "reward")
        for peer in (f"engine-{role}", f"{role}-model")
        for pair in itertools.permutations((f"learner-{role}", peer))
        if "broadcast" in variant
    }
    if broadcasts:  # the engines of a group pass weights on (TRIFORGE_HANDOVER_GROUP)
        broadcasts |= {(name, name, ANY) for name in ("engine-policy", "engine-reward")}
    assert reached == calls_of(cluster) | broadcasts


LEFT_OUT = ("policy-model", "learner-policy")  # of a sidecar


@every_variant
def test_every_policy_is_whole_and_chooses_a_pod(variant: tuple[str, ...]) -> None:
    cluster = Cluster(render(variant))
    for client in cluster.pods:
        for server in cluster.pods:
            assert cluster.out(client, server) == cluster.into(client, server), (client, server)
    for policy in cluster.policies:
        spec = policy["spec"]
        peers = [peer for rule in spec.get("ingress", []) for peer in rule["from"]]
        peers += [peer for rule in spec.get("egress", []) for peer in rule["to"]]
        own = [peer["podSelector"] for peer in peers if set(peer) == {"podSelector"}]
        for selector in [spec["podSelector"], *own]:
            assert any(chosen(selector, labels) for labels in cluster.pods.values()), named(policy)
            for expression in selector.get("matchExpressions", []):
                if expression["operator"] == "In":
                    known = {*cluster.pods, *LEFT_OUT} if "sidecar" in variant else {*cluster.pods}
                    assert set(expression["values"]) <= known, named(policy)


@every_variant
def test_only_what_was_asked_for_comes_in_from_elsewhere(variant: tuple[str, ...]) -> None:
    cluster = Cluster(render(variant))

    def let_in(namespace: str) -> set[tuple[str, int]]:
        return cluster.from_namespaces({"kubernetes.io/metadata.name": namespace})

    assert let_in("default") == set()
    assert let_in("monitoring") == (METRICS if "monitoring" in variant else set())
    assert let_in("keda") == ({("valkey", REDIS)} if "keda" in variant else set())
    apis = APIS if {"ingress", "gateway"} & set(variant) else set()
    assert cluster.from_namespaces(INGRESS) == apis


@every_variant
def test_only_what_was_asked_for_goes_out(variant: tuple[str, ...]) -> None:
    documents = render(variant)
    cluster = Cluster(documents)
    cache = "169.254.20.10/32"
    outside = {(name, port) for name, block, port in cluster.to_blocks() if block != cache}
    expected: set[tuple[str, int]] = set()
    for component, server, port in (
        ("external-postgres", "postgres", POSTGRES),
        ("external-redis", "valkey", REDIS),
        ("keda-external-redis", "valkey", REDIS),
    ):
        if component in variant:
            assert server not in cluster.pods
            callers = {who for who, called, _ in CALLS if called == server}
            expected |= {(who, port) for who in callers & set(cluster.pods)}
    if variant[0] == "cpu":
        expected.add(("models", 443))  # the demo's rewriter, from the package index
    if "load-models" in variant:
        expected.add(("load-models", 443))  # the Hugging Face Hub
    if "toolbox" in variant:  # stores may lie elsewhere; it is asked what keeps others from them
        expected |= {("toolbox", port) for port in (POSTGRES, REDIS, 443)}
    if "s3" in variant:
        expected |= {(who, 443) for who in KEEPERS}
    assert outside == expected
    (names,) = [p["spec"] for p in cluster.policies if p["metadata"]["name"] == "names"]
    (rule,) = names["egress"]
    assert names["podSelector"] == {}
    assert {(p["protocol"], p["port"]) for p in rule["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert rule["to"][0]["podSelector"]["matchLabels"] == {"k8s-app": "kube-dns"}


# Who reads or writes the artifact store by its URL.
KEEPERS = {
    "rollout-worker", "trainer", *LEARNERS, *POLICIES,
}  # fmt: skip


def test_programs_that_record_spans_reach_the_collector() -> None:
    documents = render(("cpu", "code", "traces"))
    cluster = Cluster(documents)
    (config,) = of_kind(documents, "ConfigMap")
    address = urlsplit(config["data"]["TRIFORGE_OTLP_ENDPOINT"])
    namespace = str(address.hostname).split(".")[1]
    labels = {"kubernetes.io/metadata.name": namespace}
    for document, _, container in containers(documents):
        name = document["metadata"]["name"]
        found = [
            port["port"]
            for rule in cluster.rules(name, "egress") or []
            for peer in rule["to"]
            if peer.get("namespaceSelector", {}).get("matchLabels") == labels
            for port in rule["ports"]
        ]
        traced = "TRIFORGE_OTLP_ENDPOINT" in environment(documents, container)
        assert found == ([address.port] if traced else []), name
