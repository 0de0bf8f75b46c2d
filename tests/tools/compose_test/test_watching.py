"""Does the test of the stack see a figure that is missing, and a trajectory that is not one whole trace?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from scripts.compose_test.watching import BOARD, expected_targets, figures_of, traces_of
from triforge.telemetry.tracing import trace_id_of

NAME, RUN = "run-1-00001-train-0000/0", "run-1"
TRACE = f"{trace_id_of(NAME):032x}"


def span(
    service: str, name: str, id: str, parent: str = "", trace: str = TRACE, **more: Any
) -> dict[str, Any]:
    about = {"service": f"triforge-{service}", "name": name, "trace": trace, "id": id, "parent": parent}  # fmt: skip
    return {**about, "links": [], "attributes": {}, **more}


def whole() -> list[dict[str, Any]]:
    """A trajectory whose turn travelled in a batch with others', and the step that it was trained in."""
    return [
        span("env-adapter", "trajectory", "1"),
        span("env-adapter", "episode", "2", "1"),
        span("env-adapter", "generate", "3", "2"),
        span("env-adapter", "generate batch", "b", trace="batch", links=["3", "other"]),
        span("policy", "POST /v1/generate", "c", "b", trace="batch"),
        span("local-engine", "POST /generate", "d", "c", trace="batch"),
        span("reward", "judge job", "4", "1"),
        span("trainer", "step", "s", trace="step", attributes={"triforge.run": RUN}),
        span("trainer", "learner step", "t", "s", trace="step"),
    ]


def wrong(spans: list[dict[str, Any]]) -> list[str]:
    return traces_of(spans, [NAME], RUN)[1]


def without(name: str) -> list[dict[str, Any]]:
    return [one for one in whole() if one["name"] != name]


def test_a_trajectory_that_is_one_whole_trace_is_well() -> None:
    found, faults = traces_of(whole(), [NAME], RUN)
    assert faults == []
    assert (found["spans"], found["trajectories"], found["steps"], found["learner_steps"]) == (9, 1, 1, 1)  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "faults"),
    [
        (without("judge job"), "no span ['judge job']"),
        (without("episode"), "1 spans hang below none, such as 'generate'"),
        (without("trajectory"), "0 roots, expected 1"),
        ([*whole(), span("env-adapter", "trajectory", "9")], "2 roots, expected 1"),
        (without("POST /generate"), "nothing of ['triforge-local-engine']"),
        (without("learner step"), "no learner's step lies in the trace"),
        ([one | {"trace": "own"} if one["name"] == "learner step" else one for one in whole()], "no learner's step"),
    ],
)  # fmt: skip
def test_a_trace_that_is_torn_is_seen(spans: list[dict[str, Any]], faults: str) -> None:
    assert any(faults in one for one in wrong(spans)), wrong(spans)


def test_a_run_without_trajectories_proves_nothing() -> None:
    assert traces_of(whole(), [], RUN)[1] == ["no trajectory is on record"]


def grafana(
    *,
    targets: int = -1,
    rule: str = "ok",
    silent: str = "",
    board: dict[str, Any] | None = None,
    there: tuple[str, ...] = (),
) -> Callable[[str], Any]:
    """A Grafana whose Prometheus has a figure for all but some expressions, and series of some names."""
    count = expected_targets() if targets < 0 else targets
    up = [{"labels": {"instance": f"{n}"}, "health": "up", "scrapeUrl": "", "lastError": ""} for n in range(count)]  # fmt: skip
    rules = [{"name": "ServiceDown", "health": rule, "lastError": "no", "state": "firing"}]

    def ask(path: str) -> Any:
        if path.startswith("/api/dashboards/uid/"):
            return {"dashboard": board or json.loads(BOARD.read_text())}
        assert path.startswith("/api/datasources/proxy/uid/prometheus/api/v1/")
        if path.endswith("/targets"):
            return {"data": {"activeTargets": up}}
        if path.endswith("/rules"):
            return {"data": {"groups": [{"rules": rules}]}}
        if "__name__" in path:
            return {"data": {"result": [{"metric": {"__name__": name}} for name in there]}}
        return {"data": {"result": [] if silent and silent in path else [{}]}}

    return ask


def test_a_board_whose_every_figure_is_there_is_well() -> None:
    found, faults = figures_of(grafana())
    assert faults == []
    assert found["firing"] == ["ServiceDown"]
    assert found["series"] == found["expressions"] > 30


@pytest.mark.parametrize(
    ("ask", "faults"),
    [
        (grafana(silent="triforge_policy_engines_serving"), "Engines that serve: no figure"),
        (grafana(targets=3), "targets"),
        (grafana(rule="err"), "rule ServiceDown: no"),
        (grafana(board={"panels": []}), "another board"),
    ],
)
def test_a_figure_a_target_a_rule_or_a_board_that_is_missing_is_seen(
    ask: Callable[[str], Any], faults: str
) -> None:
    (one,) = figures_of(ask)[1]
    assert faults in one


def test_what_shows_events_may_be_silent_until_there_has_been_one() -> None:
    found, faults = figures_of(grafana(silent="triforge_reward_unit_tests_total"))
    assert (found["waiting"], faults) == (["Unit tests as reward"], [])
    (one,) = figures_of(
        grafana(
            silent="triforge_reward_unit_tests_total", there=("triforge_reward_unit_tests_total",)
        )
    )[1]
    assert one.startswith("Unit tests as reward: no figure")
    assert figures_of(grafana(silent="ALERTS"))[1] == []
