"""Probes ask for what the programs answer, pods get the time their programs take to end, and APIs are behind the ingress."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from services.policy.__main__ import SHUTDOWN_S
from tests.tools.kubernetes.rendering import (
    ROOT,
    VARIANTS,
    Document,
    containers,
    named,
    of_kind,
    render,
    variant_name,
    workloads,
)
from triforge.broker import MemoryBroker, SessionLog, celery_app
from triforge.config import Settings
from triforge.store.database import Database
from triforge.web.server import config_of

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
SERVICES = {
    "triforge/policy": "policy", "triforge/env-adapter": "env_adapter", "triforge/reward": "reward",
    "triforge/trainer": "trainer", "triforge/dashboard": "dashboard", "triforge/local-engine": "local_engine",
}  # fmt: skip


def app_of(service: str) -> FastAPI:
    """A service's application with nothing behind it."""
    create: Any = importlib.import_module(f"services.{service}.app").create_app
    nothing: Any = None
    if service == "policy":
        gateway = SimpleNamespace(
            ready=nothing, metrics=SimpleNamespace(registry=CollectorRegistry())
        )
        return create(gateway=gateway, role="policy")
    if service == "env_adapter":
        parts: Any = importlib.import_module("services.env_adapter.app").Parts
        memory = Database("sqlite://")
        log, registry = SessionLog(MemoryBroker()), CollectorRegistry()
        return create(parts=parts(database=memory, family=nothing, log=log, registry=registry))
    if service == "dashboard":
        return create(apis=nothing)
    if service == "trainer":
        return create(runs=nothing, orchestrator=nothing, ready=nothing)
    return create(api=nothing, ready=nothing)


def paths_of(service: str) -> set[str]:
    if (
        service == "local_engine"
    ):  # its table of routes, read and not imported: that would bring torch
        text = (ROOT / "services" / "local_engine" / "routes.py").read_text()
        return set(re.findall(r'"(/[\w/]+)"', text))
    app = app_of(service)
    return {str(route.path) for route in app.routes if hasattr(route, "path")} | set(
        app.openapi()["paths"]
    )


@pytest.fixture(scope="module")
def answered() -> dict[str, set[str]]:
    """Paths that each service answers."""
    return {service: paths_of(service) for service in SERVICES.values()}


@every_variant
def test_probes_ask_for_paths_that_the_programs_answer(
    variant: tuple[str, ...], answered: dict[str, set[str]]
) -> None:
    for document, _, container in containers(render(variant)):
        ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
        image = container["image"].partition(":")[0]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            found = container.get(probe, {})
            for way in ("httpGet", "tcpSocket"):
                assert found.get(way, {}).get("port", "http") in {*ports, "http"}, named(document)
            if "httpGet" not in found:
                continue
            path, port = found["httpGet"]["path"], found["httpGet"]["port"]
            if port == "metrics":  # triforge.metrics answers every path alike
                assert path == "/healthz"
            else:
                service = "local_engine" if image == "lmsysorg/sglang" else SERVICES[image]
                assert path in answered[service], f"{named(document)}: {path}"
            assert found.get("timeoutSeconds", 1) < found["periodSeconds"], named(document)


@every_variant
def test_everything_that_lives_on_is_looked_after(variant: tuple[str, ...]) -> None:
    for document, _, container in containers(render(variant)):
        if document["metadata"]["name"] in ("models", "load-models"):
            continue
        assert "livenessProbe" in container, named(document)
        names = {port["name"] for port in container["ports"]}
        apis = {"http"} & names and document["kind"] != "LeaderWorkerSet"
        if apis:
            assert "readinessProbe" in container, named(document)
            assert "startupProbe" in container, named(document)


# Seconds that uvicorn waits for answers under way, as all services do or as the service's __main__ says it.
def uvicorn_grace(service: str) -> float:
    text = (ROOT / "services" / service / "__main__.py").read_text()
    own = re.findall(r'"timeout_graceful_shutdown": (\d+)', text)
    common = config_of(FastAPI(), "127.0.0.1", 1).timeout_graceful_shutdown
    return float(own[0] if own else common or 0)


def needed(document: Document, container: Document) -> float:
    """Seconds that a part takes to end in order."""
    image = container["image"].partition(":")[0]
    name = document["metadata"]["name"]
    if name.endswith("-worker"):
        return float(celery_app("redis://127.0.0.1:1/0").conf.worker_soft_shutdown_timeout)
    if image == "triforge/policy":
        return Settings().drain_s + SHUTDOWN_S
    if image in (
        "triforge/env-adapter",
        "triforge/reward",
        "triforge/trainer",
        "triforge/dashboard",
    ):
        return uvicorn_grace(SERVICES[image])
    if name.startswith("learner-"):
        return 30.0  # torchrun kills ranks that have not ended by then
    return 10.0


@every_variant
def test_pods_get_more_time_to_end_than_their_programs_take(variant: tuple[str, ...]) -> None:
    for document, template in workloads(render(variant)):
        if document["metadata"]["name"] == "models":
            continue
        given = template["spec"]["terminationGracePeriodSeconds"]
        (container,) = template["spec"]["containers"]
        held = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert given >= needed(document, container) + held + 10, named(document)


@every_variant
def test_an_api_that_is_replaced_under_load_answers_until_it_gets_no_request(
    variant: tuple[str, ...],
) -> None:
    for document in of_kind(render(variant), "Deployment"):
        (container,) = document["spec"]["template"]["spec"]["containers"]
        serves = any(port["name"] == "http" for port in container["ports"])
        rolls = document["spec"].get("strategy", {}).get("type") != "Recreate"
        assert ("lifecycle" in container) is (serves and rolls), named(document)


OUTSIDE = {"env-adapter": "env_adapter", "trainer": "trainer"}


def prefixes(documents: list[Document]) -> dict[str, set[str]]:
    """Return the path prefixes that an Ingress or an HTTPRoute sends to each service."""
    found: dict[str, set[str]] = {}
    for ingress in of_kind(documents, "Ingress"):
        for path in ingress["spec"]["rules"][0]["http"]["paths"]:
            found.setdefault(path["backend"]["service"]["name"], set()).add(path["path"])
    for route in of_kind(documents, "HTTPRoute"):
        for rule in route["spec"]["rules"]:
            (backend,) = rule["backendRefs"]
            found.setdefault(backend["name"], set()).update(
                m["path"]["value"] for m in rule["matches"]
            )
    return found


@pytest.mark.parametrize("component", ["ingress", "gateway"])
def test_the_apis_for_people_are_reached_and_metrics_are_not(
    component: str, answered: dict[str, set[str]]
) -> None:
    found = prefixes(render(("gpu-cluster", component)))
    everything = {prefix for own in found.values() for prefix in own}
    # agents reach the model in a session of theirs, and nothing else of the policy service
    assert found.pop("policy-model") == {"/sessions"}
    assert any(path.startswith("/sessions/") for path in answered["policy"])
    assert set(found) == set(OUTSIDE)
    for service, package in OUTSIDE.items():
        routes = {path for path in answered[package] if path.startswith("/v1/")}
        for prefix in found[service]:
            assert any(path.startswith(prefix) for path in routes), f"{service}: {prefix}"
        missed = {p for p in routes if not any(p.startswith(prefix) for prefix in found[service])}
        assert missed == set(), service
    for path in ("/metrics", "/healthz", "/readyz", "/docs"):
        assert not any(path.startswith(prefix) for prefix in everything)
