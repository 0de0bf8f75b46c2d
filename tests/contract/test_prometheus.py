"""Metrics, alerts and the board say the same names, and Prometheus itself has read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.contract.exported_metrics import documented_names, series_names
from tests.contract.test_docs import anchors

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
GROUPS = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
TESTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed; apt-get install prometheus",
)


def names_in(expression: str) -> set[str]:
    """The metrics of ours, and the recorded figures, that an expression asks for."""
    return set(re.findall(r"\btriforge[_:][a-zA-Z0-9_:]+", re.sub(r'"[^"]*"', '""', expression)))


def ask(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- what is exported ----


# ---- rules ----


@promtool
def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    assert "SUCCESS" in ask("check", "config", str(FOLDER / "prometheus.yml"))
    assert f"{len(RULES)} rules found" in ask("check", "rules", str(FOLDER / "rules.yml"))


@promtool
def test_every_alert_fires_when_it_should_and_not_before() -> None:
    ask("test", "rules", str(FOLDER / "rules_test.yml"))


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_tested_firing_and_not_firing(alert: str) -> None:
    fires = rests = False
    for group in TESTS:
        for check in group["promql_expr_test"]:
            if alert in check["expr"]:
                fires |= bool(check["exp_samples"]) and "firing" in check["expr"]
                rests |= not check["exp_samples"]
    assert fires
    assert rests


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_is_wrong_and_where_to_read_on(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "warn")
    assert set(rule["annotations"]) == {"summary", "description", "page"}
    page, _, anchor = rule["annotations"]["page"].partition("#")
    assert anchor in anchors(ROOT / page), rule["annotations"]["page"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_only_for_what_is_exported_or_recorded(rule: dict[str, Any]) -> None:
    texts = [rule["expr"], *rule.get("annotations", {}).values()]
    named = {name for text in texts for name in names_in(text)}
    assert named <= series_names() | RECORDED
    assert names_in(rule["expr"]) or rule["alert"] == "ServiceDown"


def test_every_recorded_figure_is_used() -> None:
    board = (ROOT / "deploy" / "grafana" / "triforge.json").read_text()
    used = set().union(*(names_in(rule["expr"]) for rule in ALERTS.values()))
    assert {name for name in RECORDED if name not in used and name not in board} == set()


# ---- the board ----

GRAFANA = ROOT / "deploy" / "grafana"
BOARD: dict[str, Any] = json.loads((GRAFANA / "triforge.json").read_text())
PANELS: list[dict[str, Any]] = [p for p in BOARD["panels"] if p["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_every_panel_says_what_it_shows_and_asks_the_provisioned_source() -> None:
    sources = GRAFANA / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(sources.read_text())["datasources"]
    for panel in PANELS:
        assert all(panel[name] for name in ("title", "description", "targets")), panel["id"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters))
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": source["type"], "uid": source["uid"]}
    service = urlsplit(source["url"]).hostname
    assert service in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_the_board_asks_only_for_what_is_exported_or_recorded() -> None:
    variables = {f"${item['name']}" for item in BOARD["templating"]["list"]}
    asked = [*EXPRESSIONS, *(item["definition"] for item in BOARD["templating"]["list"])]
    for expression in asked:
        assert names_in(expression) <= series_names() | RECORDED, expression
        assert names_in(expression) or "ALERTS" in expression
        assert set(re.findall(r"\$\w+", expression)) <= variables, expression


def test_every_metric_is_on_the_board_itself_or_in_a_figure_on_it() -> None:
    figures = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
    shown = {name for expression in EXPRESSIONS for name in names_in(expression)}
    shown |= {name for figure in shown & set(figures) for name in names_in(figures[figure])}
    bare = {name.removesuffix(suffix) for name in shown for suffix in ("_bucket", "_count", "_sum")}
    assert documented_names() - shown - bare == set()


def test_prometheus_names_our_jobs_alike_wherever_it_is_and_the_alert_asks_for_no_others() -> None:
    compose = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    monitors = ROOT / "k8s" / "components" / "monitoring" / "monitors.yaml"
    specs = [d["spec"] for d in yaml.safe_load_all(monitors.read_text())]
    ends = [e for s in specs for e in s.get("endpoints", s.get("podMetricsEndpoints"))]
    labels = [r for e in ends for r in e["relabelings"] if r.get("targetLabel") == "job"]
    jobs = {config["job_name"] for config in compose}
    assert jobs == {label["replacement"] for label in labels}
    (asked,) = re.findall(r'up\{job=~"([^"]+)"\}', ALERTS["ServiceDown"]["expr"])
    assert all(re.fullmatch(asked, job) for job in jobs)
    assert not re.fullmatch(asked, "node-exporter")


@promtool
def test_every_expression_of_the_board_parses(tmp_path: Path) -> None:
    rules = [{"record": f"board:{n}", "expr": e} for n, e in enumerate(EXPRESSIONS)]
    whole = tmp_path / "board.yml"
    whole.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    assert f"{len(rules)} rules found" in ask("check", "rules", str(whole))
