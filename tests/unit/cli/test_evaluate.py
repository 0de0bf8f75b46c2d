"""`triforge eval`: which run it asks for, and what it says of the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import POOL, Services, Triforge, run_state
from triforge.algorithms.theory import wilson
from triforge.types import Event, Page, RunState, RunStep, WeightsRecord


def say_ended(services: Services, metrics: dict[str, float], status: str = "finished") -> None:
    config = {"models": {"policy": {"path": "/w/initial"}}}
    services.say("POST /v1/runs", run_state("queued", config=config), status=201)
    services.say("GET /v1/pools/kitchen", POOL)
    services.answers.setdefault("GET /v1/runs", (200, "application/json", b'{"items": []}'))
    services.say("GET /v1/runs/run-1", run_state(status, "the pool is gone"))
    services.tell("run-1", Event(kind="run", run_id="run-1", at=0.0, data={"status": status}))
    step = RunStep(
        run_id="run-1", step=0, at=0.0, policy_version=4, reward_version=2, metrics=metrics
    )
    services.say("GET /v1/runs/run-1/steps", Page[RunStep](items=(step,)))


def weights(version: int, role: str = "policy", *, kept: bool = True) -> WeightsRecord:
    uri = f"/w/{role}/{version}"
    return WeightsRecord(role=role, version=version, uri=uri, digest="", at=0.0, kept=kept)


def posted(services: Services) -> Any:
    return next(body for what, body in services.asked if what == "POST /v1/runs")


def listed(*rows: WeightsRecord) -> Page[WeightsRecord]:
    return Page[WeightsRecord](items=rows)


def test_an_evaluation_is_a_run_of_no_steps_with_an_interval(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    say_ended(services, {"eval/sampled": 0.25, "eval/sampled_episodes": 16.0})
    code, out, err = triforge(
        "eval", "kitchen", "--tasks", "16", "--no-greedy", "--set", "run.seed=3", "--out", "f.json"
    )
    assert (code, err) == (0, "")
    run = {"seed": 3, "steps": 0, "eval_every": 1, "eval_tasks": 16, "eval_greedy": False}
    asked = {"pool": "kitchen", "name": "evaluation", "config": {"run": run}}
    assert posted(services) == asked
    assert "0.250" in out
    assert "0.102 to 0.495" in out
    figures = json.loads((tmp_path / "f.json").read_text())
    low, high = wilson(4, 16)
    sampled = {"success": 0.25, "low": low, "high": high, "episodes": 16, "policy_version": 4}
    assert figures == {"model": {"path": "/w/initial"}, "run": "run-1", "sampled": sampled}


@pytest.mark.parametrize(
    ("given", "folder"), [((), "/w/policy/7"), (("--version", "5"), "/w/policy/5")]
)
def test_the_policy_of_a_run_is_taken_the_newest_or_the_one_that_is_named(
    triforge: Triforge, services: Services, given: tuple[str, ...], folder: str
) -> None:
    say_ended(services, {"eval/greedy": 1.0, "eval/greedy_episodes": 2.0})
    services.say("GET /v1/runs/old", run_state("finished"))
    services.say("GET /v1/runs/old/weights", listed(weights(5), weights(7), weights(9, "reward")))
    code, _, err = triforge("eval", "kitchen", "--run", "old", *given)
    assert (code, err) == (0, "")
    assert posted(services)["config"]["models"] == {"policy": {"path": folder}}


def trained(services: Services, *, initial: str = "/w/initial") -> None:
    """Runs on two pools, newest first: one that goes on, an evaluation, one that trained."""
    config = {"models": {"policy": {"path": initial}}}
    runs = (
        run_state("running", id="late"),
        run_state("finished", id="other", pool_id="pool-2"),
        run_state("finished", id="look", steps=0),
        run_state("stopped", id="old", config=config),
    )
    services.say("GET /v1/runs", Page[RunState](items=runs))
    services.say("GET /v1/runs/old/weights", listed(weights(5), weights(7), weights(8, kept=False)))


def test_the_newest_policy_that_was_trained_on_the_pool_is_taken_by_itself_and_named(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    say_ended(services, {"eval/greedy": 1.0, "eval/greedy_episodes": 2.0})
    trained(services)
    code, out, err = triforge("eval", "kitchen", "--out", "f.json")
    assert (code, err) == (0, "")
    assert posted(services)["config"]["models"] == {"policy": {"path": "/w/policy/7"}}
    assert out.startswith("evaluating the policy /w/policy/7 (version 7 of old)\n")
    model = json.loads((tmp_path / "f.json").read_text())["model"]
    assert model == {"path": "/w/policy/7", "run": "old", "version": 7}


@pytest.mark.parametrize(
    ("given", "initial"),
    [
        (("--initial",), "/w/initial"),
        ((), "/w/policy/7"),
        (("--set", "models.policy.path=/mine"), ""),
    ],
)
def test_the_initial_policy_is_taken_when_it_is_asked_for_and_when_none_was_trained(
    triforge: Triforge, services: Services, given: tuple[str, ...], initial: str
) -> None:
    say_ended(services, {"eval/greedy": 1.0, "eval/greedy_episodes": 2.0})
    trained(services, initial=initial)
    code, out, _ = triforge("eval", "kitchen", *given)
    path = posted(services)["config"].get("models", {}).get("policy", {}).get("path")
    assert (code, path) == (0, "/mine" if "--set" in given else None)
    assert "(not trained here)" in out


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--run", "old", "--version", "6"), "run old has no policy version 6"),
        (("--run", "old"), "version 5 of run old is no longer on the disk"),
    ],
)
def test_weights_that_are_not_there_are_named_and_no_run_is_made(
    triforge: Triforge, services: Services, given: tuple[str, ...], reason: str
) -> None:
    services.say("GET /v1/runs/old", run_state("stopped"))
    services.say("GET /v1/runs/old/weights", listed(weights(5, kept=False)))
    code, _, err = triforge("eval", "kitchen", *given)
    assert code == 1
    assert reason in err
    assert not any(what.startswith("POST") for what, _ in services.asked)


def test_a_mean_score_is_shown_with_success_which_may_have_no_threshold(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    ends = {"eval/sampled_score/low": 0.4, "eval/sampled_score/high": 0.9}
    say_ended(services, {"eval/sampled_episodes": 16.0, "eval/sampled_score": 0.65, **ends})
    code, out, _ = triforge("eval", "kitchen", "--out", "f.json")
    assert code == 0
    (row,) = (line for line in out.splitlines() if "sampled" in line)
    shown = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert shown == ["sampled", "score", "0.650", "0.400 to 0.900", "16"]
    found = json.loads((tmp_path / "f.json").read_text())["sampled"]
    assert (found["success"], found["score"], found["score/high"]) == (None, 0.65, 0.9)


def test_an_episode_that_was_not_measured_is_no_failure_of_the_model(
    triforge: Triforge, services: Services
) -> None:
    say_ended(services, {"eval/sampled_episodes": 0.0})
    code, out, _ = triforge("eval", "kitchen")
    assert code == 0
    assert "not measured" in out
    assert "1.000" not in out


def test_a_pool_without_held_out_tasks_and_a_failed_run_end_with_a_sentence(
    triforge: Triforge, services: Services
) -> None:
    say_ended(services, {})
    code, _, err = triforge("eval", "kitchen")
    assert code == 1
    assert "the pool has no held-out tasks" in err
    say_ended(services, {}, status="failed")
    code, _, err = triforge("eval", "kitchen")
    assert (code, err) == (1, "triforge: evaluation run-1 failed: the pool is gone\n")
