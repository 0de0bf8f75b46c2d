"""`triforge eval`: which run it asks for, and what it says of the answer."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import POOL, Services, Triforge, run_state
from triforge.algorithms.theory import mean_interval, share_interval, wilson
from triforge.cli.figures import held_out
from triforge.testing.fakes import FakeFamily
from triforge.types import (
    Event,
    Page,
    RunState,
    RunStep,
    Task,
    TrajectoryPage,
    TrajectorySummary,
    WeightsRecord,
)

FAMILY = FakeFamily()  # named by its path below
Episodes = dict[str, list[tuple[int | None, float | None]]]
WON: Episodes = {"greedy": [(1, None), (1, None)]}


def summary(mode: str, number: int, task: str, outcome: int | None, score: float | None) -> Any:
    return TrajectorySummary(
        id=f"{mode}{number}", run_id="run-1", step=0, purpose="evaluate", group_id=f"run-1-00000-{mode}-{number:04d}",
        task_id=task, task_slot=task, instruction=f"do {task}", outcome=outcome, score=score, length=1, tokens=1,
        truncated=False, staleness=0, votes=0, vote=None, against=False, advantage=None,
    )  # fmt: skip


def say_ended(
    services: Services, episodes: Episodes, status: str = "finished", tasks: int = 64
) -> None:
    """Each run plays these episodes (outcome and score) of tasks t0, t1, ..., which repeat after so many."""
    config = {"models": {"policy": {"path": "/w/initial"}}}
    services.say("POST /v1/runs", run_state("queued", config=config), status=201)
    services.say("GET /v1/pools/kitchen", POOL)
    services.answers.setdefault("GET /v1/runs", (200, "application/json", b'{"items": []}'))
    services.say("GET /v1/runs/run-1", run_state(status, "the pool is gone"))
    services.tell("run-1", Event(kind="run", run_id="run-1", at=0.0, data={"status": status}))
    rows = tuple(
        summary(mode, number, f"t{number % tasks}", outcome, score)
        for mode, played in episodes.items()
        for number, (outcome, score) in enumerate(played)
    )
    page = TrajectoryPage(items=rows, total=len(rows))
    services.say("GET /v1/runs/run-1/trajectories", page)


def weights(version: int, role: str = "policy", *, kept: bool = True) -> WeightsRecord:
    uri = f"/w/{role}/{version}"
    return WeightsRecord(role=role, version=version, uri=uri, digest="", at=0.0, kept=kept)


def posted(services: Services) -> Any:
    return next(body for what, body in services.asked if what == "POST /v1/runs")


def listed(*rows: WeightsRecord) -> Page[WeightsRecord]:
    return Page[WeightsRecord](items=rows)


def test_run_of_no_steps(triforge: Triforge, services: Services, tmp_path: Path) -> None:
    outcomes = [1] * 4 + [-1] * 12
    say_ended(services, {"sampled": [(outcome, float(outcome == 1)) for outcome in outcomes]})
    code, out, err = triforge(
        "eval", "kitchen", "--tasks", "16", "--no-greedy", "--set", "run.seed=3", "--out", "f.json"
    )
    assert (code, err) == (0, "")
    run = {
        "seed": 3,
        "steps": 0,
        "eval_every": 1,
        "eval_tasks": 16,
        "eval_greedy": False,
        "eval_rollouts": 1,
    }
    asked = {"pool": "kitchen", "name": "evaluation", "config": {"run": run}}
    assert posted(services) == asked
    assert "0.250" in out
    assert "0.102 to 0.495" in out
    (figures,) = json.loads((tmp_path / "f.json").read_text())["models"]
    low, high = wilson(4, 16)
    played = figures.pop("played")
    assert (len(played), played[3]["task"], played[3]["outcome"]) == (16, "t3", 1)
    assert figures == {
        "model": {"name": "initial", "path": "/w/initial"}, "run": "run-1",
        "sampled": {"success": 0.25, "low": low, "high": high, "episodes": 16},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "folder"),
    [("old", "/w/policy/7"), ("old:5", "/w/policy/5"), ("./mine", "mine"), ("mine", "mine")],
)
def test_the_policy_of_a_run_is_taken_the_newest_or_the_one_that_is_named(
    triforge: Triforge, services: Services, tmp_path: Path, given: str, folder: str
) -> None:
    (tmp_path / "mine").mkdir()
    say_ended(services, WON)
    services.say("GET /v1/runs/old", run_state("finished"))
    services.say("GET /v1/runs/old/weights", listed(weights(5), weights(7), weights(9, "reward")))
    code, _, err = triforge("eval", "kitchen", "--model", given)
    assert (code, err) == (0, "")
    path = posted(services)["config"]["models"]["policy"]["path"]
    assert path == (str(tmp_path / folder) if folder == "mine" else folder)


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


def test_nothing_is_played_before_every_model_is_known(
    triforge: Triforge, services: Services
) -> None:
    trained(services)
    code, _, _ = triforge("eval", "kitchen", "--model", "initial", "--model", "nosuch")
    assert (code, [what for what, _ in services.asked if "POST" in what]) == (1, [])


def test_newest_policy_of_the_pool(triforge: Triforge, services: Services, tmp_path: Path) -> None:
    say_ended(services, WON)
    trained(services)
    code, out, err = triforge("eval", "kitchen", "--out", "f.json")
    assert (code, err) == (0, "")
    assert posted(services)["config"]["models"] == {"policy": {"path": "/w/policy/7"}}
    assert "answers with /w/policy/7 until the next run" in out
    assert out.startswith("evaluating the policy /w/policy/7 (version 7 of old)\n")
    (figures,) = json.loads((tmp_path / "f.json").read_text())["models"]
    assert figures["model"] == {"name": "old:7", "path": "/w/policy/7", "run": "old", "version": 7}


@pytest.mark.parametrize(
    ("given", "initial"),
    [
        (("--model", "initial"), "/w/initial"),
        ((), "/w/policy/7"),
        (("--set", "models.policy.path=/mine"), ""),
    ],
)
def test_the_initial_policy_is_taken_when_it_is_asked_for_and_when_none_was_trained(
    triforge: Triforge, services: Services, given: tuple[str, ...], initial: str
) -> None:
    say_ended(services, WON)
    trained(services, initial=initial)
    code, out, _ = triforge("eval", "kitchen", *given)
    path = posted(services)["config"].get("models", {}).get("policy", {}).get("path")
    assert (code, path) == (0, "/mine" if "--set" in given else None)
    assert "(not trained here)" in out


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--model", "old:6"), "run old has no policy version 6"),
        (("--model", "old"), "version 5 of run old is no longer on the disk"),
        (("--model", "old:x"), "RUN:VERSION"),
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


def test_mean_score(triforge: Triforge, services: Services, tmp_path: Path) -> None:
    scores = [0.5, 0.8] * 8
    say_ended(services, {"sampled": [(None, score) for score in scores]})
    code, out, _ = triforge("eval", "kitchen", "--out", "f.json")
    assert code == 0
    (row,) = (line for line in out.splitlines() if ", sampled" in line)
    shown = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert shown == ["initial", "score, sampled", "0.650", "0.567 to 0.733", "16"]
    found = json.loads((tmp_path / "f.json").read_text())["models"][0]["sampled"]
    assert found["success"] is None
    assert (found["score/low"], found["score/high"]) == pytest.approx(mean_interval(scores))


def test_unmeasured_is_no_failure(triforge: Triforge, services: Services) -> None:
    say_ended(services, {"sampled": [(None, None)] * 4})
    code, out, _ = triforge("eval", "kitchen")
    assert code == 0
    assert "not measured" in out
    assert "1.000" not in out


def test_evaluation_that_fails(triforge: Triforge, services: Services) -> None:
    say_ended(services, {})
    code, _, err = triforge("eval", "kitchen")
    assert code == 1
    assert "the pool has no held-out tasks" in err
    say_ended(services, {}, status="failed")
    code, _, err = triforge("eval", "kitchen")
    assert (code, err) == (1, "triforge: evaluation run-1 failed: the pool is gone\n")


def test_each_task_is_played_k_times_for_pass_at_k(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    # t0 is solved in 1 of 4, t1 in 4 of 4, t2 and t3 never
    won = [1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1]
    say_ended(services, {"sampled": [(outcome, None) for outcome in won]}, tasks=4)
    code, out, err = triforge("eval", "kitchen", "--k", "4", "--out", "f.json")
    assert (code, err) == (0, "")
    assert posted(services)["config"]["run"]["eval_rollouts"] == 4
    found = json.loads((tmp_path / "f.json").read_text())["models"][0]["sampled"]
    assert found["success"] == pytest.approx(5 / 16)
    assert (found["low"], found["high"]) == share_interval([(1, 4), (4, 4), (0, 4), (0, 4)])
    assert found["pass@2"] == pytest.approx((0.5 + 1) / 4)
    assert found["pass@4"] == pytest.approx(2 / 4)
    assert "pass@1" not in found
    assert "pass@4" in out


def test_models_are_compared_task_by_task(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    services.say("GET /v1/runs/old", run_state("finished"))
    services.say("GET /v1/runs/old/weights", listed(weights(5), weights(7)))
    say_ended(services, {"sampled": [(1, None), (-1, None), (-1, None), (-1, None), (None, None)]})
    triforge("eval", "kitchen", "--model", "old:5", "--out", "first.json")
    say_ended(services, {"sampled": [(-1, None), (1, None), (1, None), (-1, None), (1, None)]})
    models = ("--model", "old:5", "--model", "old:7")
    code, out, err = triforge("eval", "kitchen", *models, "--against", "first.json", "-o", "f.json")
    assert (code, err) == (0, "")
    paths = [
        body["config"]["models"]["policy"]["path"] for what, body in services.asked if what == "POST /v1/runs"
    ]  # fmt: skip
    assert paths == ["/w/policy/5", "/w/policy/5", "/w/policy/7"]
    found = json.loads((tmp_path / "f.json").read_text())
    assert len(found["models"]) == 3
    change = found["differences"][1]
    assert (change["first"], change["second"], change["pairs"]) == ("old:5", "old:7", 4)
    assert (change["gain"], change["low"] < 0 < change["high"]) == (0.25, True)
    assert [row[0] for row in change["tasks"]] == ["t1", "t2", "t0"]
    assert "old:7 against old:5, sampled: undecided, +25.0 points" in out
    assert "do t3" not in out


def test_intervals_of_tasks_that_were_played_several_times_are_those_of_the_trainer() -> None:
    metrics = {"eval/sampled": 0.5, "eval/sampled_episodes": 64.0}
    step = RunStep(run_id="r", step=0, at=0.0, policy_version=1, reward_version=0, metrics=metrics)
    narrow = held_out([step])["sampled"]
    assert (narrow["low"], narrow["high"]) == wilson(32, 64)
    metrics |= {"eval/sampled/low": 0.2, "eval/sampled/high": 0.8}
    wide = held_out([step.model_copy(update={"metrics": metrics})])["sampled"]
    assert (wide["low"], wide["high"]) == (0.2, 0.8)
    nothing = {"eval/sampled_episodes": 4.0, "eval/sampled_score": 0.5}
    scored = held_out([step.model_copy(update={"metrics": nothing})])["sampled"]
    assert (scored["success"], scored["low"], scored["high"]) == (None, None, None)


# ---- an endpoint ----


@pytest.fixture
def endpoint(services: Services) -> str:
    """The address of one that answers `up`, and a pool of tasks to count to 1, 2, 3 and 4."""
    family = f"{__name__}:FAMILY"
    pool = POOL.model_copy(update={"environment": family, "tasks": {"heldout": {"active": 4}}})
    services.say("GET /v1/pools/kitchen", pool)
    tasks = tuple(
        Task(
            id=f"t{n}", pool_id="pool-1", slot=f"t{n}", family=family, split="heldout",
            instruction=f"Count to {n}.", params={"target": n},
        )
        for n in (1, 2, 3, 4)
    )  # fmt: skip
    services.say("GET /v1/pools/pool-1/tasks", Page[Task](items=tasks))
    reply = {"choices": [{"message": {"content": "up"}, "finish_reason": "stop"}]}
    services.say("POST /v1/chat/completions", json.dumps(reply))
    return f"{services.url}/v1"


def test_a_model_of_an_endpoint_plays_the_tasks_of_a_pool(
    triforge: Triforge, services: Services, endpoint: str, tmp_path: Path
) -> None:
    given = ("--endpoint", endpoint, "--no-greedy", "--model", "gpt", "--k", "2")
    short = ("--set", "env_adapter.max_steps=2")  # the longer tasks fail
    code, _, err = triforge("eval", "kitchen", *given, *short, "--out", "short.json")
    assert (code, err) == (0, "")
    (found,) = json.loads((tmp_path / "short.json").read_text())["models"]
    assert (found["sampled"]["success"], found["sampled"]["pass@2"]) == (0.5, 0.5)
    assert found["sampled"]["episodes"] == 8
    asked = [body for what, body in services.asked if what == "POST /v1/chat/completions"]
    assert {body["model"] for body in asked} == {"gpt"}
    second = next(body["messages"] for body in asked if len(body["messages"]) > 1)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == "up"
    code, _, _ = triforge("eval", "kitchen", *given, "--against", "short.json", "--out", "f.json")
    (change,) = json.loads((tmp_path / "f.json").read_text())["differences"]
    assert [row[0] for row in change["tasks"]] == ["t3", "t4"]
    assert (code, change["gain"]) == (0, 0.5)
    assert not any(what == "POST /v1/runs" for what, _ in services.asked)


def test_a_family_is_played_without_a_deployment(
    triforge: Triforge, services: Services, endpoint: str, tmp_path: Path
) -> None:
    given = ("--env", "household", "--tasks", "3", "--set", "env_adapter.max_steps=1")
    code, _, err = triforge("eval", *given, "--endpoint", endpoint, "--model", "m", "-o", "f.json")
    assert (code, err) == (0, "")
    assert {what for what, _ in services.asked} == {"GET /v1/models", "POST /v1/chat/completions"}
    (found,) = json.loads((tmp_path / "f.json").read_text())["models"]
    assert (found["greedy"]["success"], found["greedy"]["episodes"]) == (0.0, 3)


def test_an_endpoint_that_refuses_everything_is_an_error(
    triforge: Triforge, services: Services, endpoint: str
) -> None:
    services.refuse("POST /v1/chat/completions", 401, "access", "no such key")
    code, _, err = triforge("eval", "kitchen", "--endpoint", endpoint, "--model", "gpt")
    assert code == 1
    assert "no such key" in err


def test_a_dead_endpoint_is_given_up_before_anything_is_played(triforge: Triforge) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))  # bound, does not listen
        url = f"http://127.0.0.1:{port.getsockname()[1]}/v1"
        started = time.monotonic()
        given = ("--env", "household", "--tasks", "1", "--model", "m", "--endpoint", url)
        code, out, err = triforge("eval", *given)
    assert (code, time.monotonic() - started < 10) == (1, True)
    assert "no answer to GET /models" in err
    assert "ssl" not in out + err
