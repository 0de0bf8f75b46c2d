"""`triforge eval`: which run it asks for, and what it says of the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Services, Triforge, run_state
from triforge.algorithms.theory import wilson
from triforge.types import Event, RunStep, WeightsRecord


def say_ended(services: Services, metrics: dict[str, float], status: str = "finished") -> None:
    services.say("POST /v1/runs", run_state("queued"), status=201)
    services.say("GET /v1/runs/run-1", run_state(status, "the pool is gone"))
    services.tell("run-1", Event(kind="run", run_id="run-1", at=0.0, data={"status": status}))
    step = RunStep(
        run_id="run-1", step=0, at=0.0, policy_version=4, reward_version=2, metrics=metrics
    )
    services.say("GET /v1/runs/run-1/steps", f"[{step.model_dump_json()}]")


def weights(version: int, role: str = "policy", *, kept: bool = True) -> str:
    row = WeightsRecord.model_validate(
        {
            "role": role,
            "version": version,
            "uri": f"/w/{role}/{version}",
            "digest": "",
            "at": 0.0,
            "kept": kept,
        }
    )
    return row.model_dump_json()


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
    assert services.asked[0] == ("POST /v1/runs", asked)
    assert "0.250" in out
    assert "0.102 to 0.495" in out
    figures = json.loads((tmp_path / "f.json").read_text())
    low, high = wilson(4, 16)
    sampled = {"success": 0.25, "low": low, "high": high, "episodes": 16, "policy_version": 4}
    assert figures == {"run": "run-1", "sampled": sampled}


@pytest.mark.parametrize(
    ("given", "folder"), [((), "/w/policy/7"), (("--version", "5"), "/w/policy/5")]
)
def test_the_policy_of_a_run_is_taken_the_newest_or_the_one_that_is_named(
    triforge: Triforge, services: Services, given: tuple[str, ...], folder: str
) -> None:
    say_ended(services, {"eval/greedy": 1.0, "eval/greedy_episodes": 2.0})
    services.say("GET /v1/runs/old", run_state("finished"))
    services.say(
        "GET /v1/runs/old/weights", f"[{weights(5)}, {weights(7)}, {weights(9, 'reward')}]"
    )
    code, _, err = triforge("eval", "kitchen", "--run", "old", *given)
    assert (code, err) == (0, "")
    assert services.asked[2][1]["config"]["models"] == {"policy": {"path": folder}}


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
    services.say("GET /v1/runs/old/weights", f"[{weights(5, kept=False)}]")
    code, _, err = triforge("eval", "kitchen", *given)
    assert code == 1
    assert reason in err
    assert not any(what.startswith("POST") for what, _ in services.asked)


def test_a_run_that_still_deletes_its_versions_is_not_evaluated_from(
    triforge: Triforge, services: Services
) -> None:
    services.say("GET /v1/runs/old", run_state("running"))
    code, _, err = triforge("eval", "kitchen", "--run", "old")
    assert (code, len(services.asked)) == (1, 1)
    assert "run old is running and deletes old versions as it goes" in err


def test_a_mean_score_stands_beside_success_which_may_have_no_threshold(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    ends = {"eval/sampled_score/low": 0.4, "eval/sampled_score/high": 0.9}
    say_ended(services, {"eval/sampled_episodes": 16.0, "eval/sampled_score": 0.65, **ends})
    code, out, _ = triforge("eval", "kitchen", "--out", "f.json")
    assert code == 0
    assert "no threshold" in out
    assert "mean score, sampled: 0.650, 0.400 to 0.900" in out
    found = json.loads((tmp_path / "f.json").read_text())["sampled"]
    assert (found["success"], found["score"], found["score/high"]) == (None, 0.65, 0.9)


def test_an_episode_that_was_not_measured_is_no_failure_of_the_model(
    triforge: Triforge, services: Services
) -> None:
    say_ended(services, {"eval/sampled_episodes": 0.0})
    code, out, _ = triforge("eval", "kitchen")
    assert code == 0
    assert "not measured" in out
    assert "0.000 to 1.000" in out


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
