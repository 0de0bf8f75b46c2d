"""Monitoring of the stack, with `--profile watch` and traces on: every figure that the board asks for, and a trace a trajectory."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import yaml

from scripts.calling import ROOT
from scripts.compose_test.collector import PORT
from scripts.compose_test.stack import Stack
from triforge.telemetry.tracing import trace_id_of

PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"  # as operations.md has it
BOARD = ROOT / "deploy" / "grafana" / "triforge.json"
PROMETHEUS = ROOT / "deploy" / "prometheus"
# what has no series before its first event, and need not happen in a run of a few steps (an alert may be pending and not fire)
EVENTS = frozenset(
    {
        "ALERTS", "triforge_env_adapter_endless_answers_total", "triforge_env_adapter_malformed_actions_total",
        "triforge_env_adapter_rewrites_total", "triforge_policy_engine_failures_total", "triforge_reward_judged_groups_total",
        "triforge_reward_unit_tests_total", "triforge_trainer_learner_skipped_updates_total",
    }
)  # fmt: skip
_COLLECTOR, _SEEN = "collector", "/tmp/spans.jsonl"  # noqa: S108  in its container
_NAMES = 'count by (__name__) ({__name__=~"triforge_.+"})'
# rates need two looks of Prometheus, spans are sent every five seconds
_PATIENCE_S, _POLL_S = (120.0, 3.0)
_TRACE = frozenset({"trajectory", "episode", "generate", "judge job"})
_SERVICES = frozenset(f"triforge-{service}" for service in ("env-adapter", "policy", "local-engine", "reward"))  # fmt: skip
Ask = Callable[[str], Any]


@contextlib.contextmanager
def watched(stack: Stack) -> Iterator[float]:
    """Yield the stack with Grafana and with traces that go to a collector, as an operator would have it; the value is the seconds until healthy."""
    text = Path(__file__).with_name("collector.py").read_text()
    stack.run_extra(_COLLECTOR, "trainer", "python", "-c", text, _SEEN)
    stack.set(COMPOSE_PROFILES="cpu,watch", TRIFORGE_OTLP_ENDPOINT=f"http://{_COLLECTOR}:{PORT}")
    try:
        yield round(stack.up(), 1)
    finally:
        stack.compose("rm", "--stop", "--force", "grafana")
        stack.remove_extra(_COLLECTOR)
        stack.set(COMPOSE_PROFILES="cpu", TRIFORGE_OTLP_ENDPOINT="")


def look(stack: Stack, run: str, folder: Path) -> dict[str, Any]:
    """Return what the board, Prometheus and the collector show of a run that has ended; `wrong` names what they should and do not."""
    figures, wrong_figures = _patiently(lambda: figures_of(_grafana(stack)))
    path = folder / "watched.parquet"
    stack.save("runs", f"/v1/runs/{run}/export", path)
    rows = pq.read_table(path, columns=["trajectory_id"]).to_pylist()
    names = sorted({row["trajectory_id"] for row in rows if "-train-" in row["trajectory_id"]})
    traces, wrong_traces = _patiently(lambda: traces_of(_spans(stack), names, run))
    return {"figures": figures, "traces": traces, "wrong": [*wrong_figures, *wrong_traces]}


def _patiently(
    ask: Callable[[], tuple[dict[str, Any], list[str]]],
) -> tuple[dict[str, Any], list[str]]:
    """Return what is found when nothing is wrong any more, or the time is over."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        found, wrong = ask()
        if not wrong or time.monotonic() > deadline:
            return found, wrong
        time.sleep(_POLL_S)


# ---- Grafana, and Prometheus through it ----


def _grafana(stack: Stack) -> Ask:
    user = base64.b64encode(f"admin:{stack.secret('GRAFANA_PASSWORD')}".encode()).decode()
    return lambda path: stack.get("grafana", path, authorization=f"Basic {user}")


def figures_of(ask: Ask) -> tuple[dict[str, Any], list[str]]:
    """How much the board and Prometheus show, and what is wrong with it.

    Args:
        ask: GET of a path of Grafana.
    """
    board = json.loads(BOARD.read_text())
    shown = ask(f"/api/dashboards/uid/{board['uid']}")["dashboard"]
    wrong = [] if shown["panels"] == board["panels"] else ["Grafana shows another board"]
    source = f"/api/datasources/proxy/uid/{board['templating']['list'][0]['datasource']['uid']}/api/v1"  # fmt: skip
    targets = ask(f"{source}/targets")["data"]["activeTargets"]
    up = sorted(one["labels"]["instance"] for one in targets if one["health"] == "up")
    wrong += [f"{one['scrapeUrl']}: {one['lastError']}" for one in targets if one["health"] != "up"]
    if len(up) != expected_targets():
        wrong.append(f"Prometheus reaches {up}, expected {expected_targets()} targets")
    groups = ask(f"{source}/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    wrong += [f"rule {rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]  # fmt: skip
    asked = [(p["title"], t["expr"]) for p in board["panels"] for t in p.get("targets", [])]
    query = f"{source}/query?query="
    there = {one["metric"]["__name__"] for one in ask(query + quote(_NAMES))["data"]["result"]}
    series, waiting = 0, []
    for title, expression in asked:
        found = ask(query + quote(expression.replace("$pool", ".*")))["data"]["result"]
        series += len(found)
        absent = set(re.findall(r"\b(?:triforge_\w+|ALERTS)", expression)) - there
        if not found and absent and absent <= EVENTS:
            waiting.append(title)
        elif not found:
            wrong.append(f"{title}: no figure for {expression}")
    firing = sorted(rule["name"] for rule in rules if rule.get("state") == "firing")
    return {
        "targets": len(up), "rules": len(rules), "expressions": len(asked), "series": series, "waiting": waiting, "firing": firing,
    }, wrong  # fmt: skip


def expected_targets() -> int:
    """Return the number of processes that Prometheus scrapes, with one container a service."""
    jobs = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    fixed = [t for job in jobs for c in job.get("static_configs", []) for t in c["targets"]]
    named = [n for job in jobs for c in job.get("dns_sd_configs", []) for n in c["names"]]
    return len(fixed) + len(named)


# ---- traces ----


def _spans(stack: Stack) -> list[dict[str, Any]]:
    lines = stack.exec_extra(_COLLECTOR, "cat", _SEEN).splitlines()
    return [json.loads(line) for line in lines]


def traces_of(
    spans: Sequence[Mapping[str, Any]], trajectories: Sequence[str], run: str
) -> tuple[dict[str, Any], list[str]]:
    """How much the collector has seen, and what is wrong with it: one trajectory is one trace, a step is one."""
    by_trace: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    linking: dict[str, set[str]] = defaultdict(set)  # traces that link to a span
    for span in spans:
        by_trace[span["trace"]].append(span)
        for link in span["links"]:
            linking[link].add(span["trace"])
    wrong = [] if trajectories else ["no trajectory is on record"]
    for name in trajectories:
        own = by_trace[f"{trace_id_of(name):032x}"]
        linked = {trace for span in own for trace in linking[span["id"]]}
        services = {s["service"] for s in own} | {s["service"] for t in linked for s in by_trace[t]}
        wrong += [f"trajectory {name}: {problem}" for problem in _wrong_with(own, services)]
    steps = [s for s in spans if s["name"] == "step" and s["attributes"].get("triforge.run") == run]
    learned = [s["name"] for step in steps for s in by_trace[step["trace"]] if s["name"] == "learner step"]  # fmt: skip
    if not learned:
        wrong.append("no learner's step lies in the trace of a step of the run")
    names = sorted({span["service"] for span in spans})
    return {
        "spans": len(spans), "traces": len(by_trace), "trajectories": len(trajectories), "steps": len(steps),
        "learner_steps": len(learned), "services": names,
    }, wrong  # fmt: skip


def _wrong_with(own: Sequence[Mapping[str, Any]], services: set[str]) -> Iterator[str]:
    """Yield what is wrong with a trajectory's trace, given the services that worked on it there and in linked batches."""
    roots = [span for span in own if span["name"] == "trajectory" and not span["parent"]]
    if len(roots) != 1:
        yield f"{len(roots)} roots, expected 1"
    ids = {span["id"] for span in own}
    if lost := [s["name"] for s in own if s["parent"] and s["parent"] not in ids]:
        yield f"{len(lost)} spans hang below none, such as {lost[0]!r}"
    if missing := _TRACE - {span["name"] for span in own}:
        yield f"no span {sorted(missing)}"
    if away := _SERVICES - services:
        yield f"nothing of {sorted(away)}"
