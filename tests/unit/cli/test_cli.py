"""The command line: what it asks of the services, what it prints, and a sentence and an exit code for everything refused."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.cli.conftest import APIS, FIELDS, WORSE, Services, Triforge, run_state
from tests.unit.cli.test_evaluate import weights
from triforge.cli.deployment import settings
from triforge.cli.up import print_policy
from triforge.environments.registry import known
from triforge.errors import ConfigError
from triforge.supervisor.supervise import ADDRESSES, LOCK
from triforge.types import Event, Page, RunState, WeightsRecord

# ---- up and doctor ----


def test_a_missing_config_is_named_in_one_line(triforge: Triforge) -> None:
    for command in ("up", "doctor"):
        code, out, err = triforge(command, "-c", "none.toml")
        assert (code, out, err.count("\n"), "none.toml" in err) == (1, "", 1, True)


def test_a_folder_in_which_one_runs_is_refused_before_its_ports(
    triforge: Triforge, tmp_path: Path
) -> None:
    (tmp_path / "var").mkdir()
    with (tmp_path / "var" / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = triforge("up", "-c", "none.toml")
        assert (code, "a deployment is starting in var already" in err) == (1, True)
        (tmp_path / "var" / ADDRESSES).touch()
        code, _, err = triforge("up", "-c", "none.toml")
    assert (code, "a deployment runs in var already" in err) == (1, True)


def test_one_that_is_starting_is_named_with_its_logs(
    triforge: Triforge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TRIFORGE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "var" / "logs").mkdir(parents=True)
    (tmp_path / "var" / "train.toml").touch()
    with (tmp_path / "var" / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for asked in (("doctor",), ("run", "show", "run-1"), ("run", "watch", "run-1")):
            code, out, err = triforge(*asked)
            assert (
                "a deployment in var is starting; its logs: triforge logs --follow\n" in out + err
            )
            assert code == (asked != ("doctor",))
    assert "triforge up --config var/train.toml --auto-ports" in triforge("run", "show", "run-1")[2]


@pytest.mark.parametrize(("files", "names"), [((), "/v7"), (("adapter_config.json",), "FOLDER")])
async def test_up_says_how_to_serve_what_was_trained(
    services: Services,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    files: tuple[str, ...],
    names: str,
) -> None:
    (tmp_path / "v7").mkdir()
    for name in files:
        (tmp_path / "v7" / name).touch()
    row = weights(7).model_copy(update={"uri": str(tmp_path / "v7")})
    services.say("GET /v1/runs", Page[RunState](items=(run_state("finished"),)))
    services.say("GET /v1/runs/run-1/weights", Page[WeightsRecord](items=(row,)))
    await print_policy(settings(), "/w/initial", "triforge up --config a.toml --state var")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("policy: /w/initial; version 7 of run-1")
    assert "triforge up --config a.toml --state var --set models.policy.path=" in second
    assert second.endswith(names)
    assert ("run save run-1" in second) == bool(files)
    await print_policy(settings(), row.uri, "triforge up")
    assert capsys.readouterr().out == f"policy: {row.uri}\n"


def test_doctor(triforge: Triforge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFORGE_REDIS_URL", "redis://127.0.0.1:1/0")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    roles = "".join(f'[models.{r}]\npath = "{folder}"\n' for r in ("policy", "reward", "rewriter"))
    path = tmp_path / "run.toml"
    path.write_text(roles)
    code, out, err = triforge("doctor", "-c", str(path))
    assert err == ""
    if "is taken" not in out:  # by another deployment on this machine
        assert "learner-reward; their ports are free" in out
    assert code == 1
    assert "lacks tokenizer.json" in out, "an empty folder is no model"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "run.toml"]


# ---- runs ----


def test_run_start(triforge: Triforge, services: Services, tmp_path: Path) -> None:
    (tmp_path / "over.toml").write_text("[run]\nsteps = 5\nseed = 3\n")
    services.say("POST /v1/runs", run_state("queued"), status=201)
    arguments = ("--config", "over.toml", "--set", "run.steps=7", "--set", "reward.votes=2")
    assert triforge("run", "start", "kitchen", "--name", "mine", *arguments) == (
        0, "run-1 queued\n", "",
    )  # fmt: skip
    config = {"run": {"steps": 7, "seed": 3}, "reward": {"votes": 2}}
    asked = {"pool": "kitchen", "name": "mine", "config": config}
    assert services.asked == [("POST /v1/runs", asked)]


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("stopped", 0), ("failed", 1)])
def test_run_watch(triforge: Triforge, services: Services, status: str, code: int) -> None:
    reason = "given [b], expected [/b]" if status == "failed" else ""
    metrics = {"success": 0.25, "judge/balanced": 0.5, "other": 9.0}
    rewrite = {"instruction_before": "one", "instruction_after": "two"}
    services.say("GET /v1/runs/run-1", run_state(status, reason))
    services.tell(
        "run-1",
        Event(kind="step", run_id="run-1", step=2, at=0.0, data={"metrics": metrics}),
        Event(kind="accepted", run_id="run-1", at=0.0, data=rewrite),
        Event(kind="noise", run_id="run-1", at=0.0),
        Event(kind="run", run_id="run-1", at=0.0, data={"status": status, "reason": reason}),
    )
    ended, out, _ = triforge("run", "watch", "run-1")
    assert ended == code
    assert out.splitlines() == [
        "step 2: success 0.250  judge bal. 0.500",
        "accepted: 'one' -> 'two'",
        f"run {status}",
        f"run-1 at step 2 of 9: {status} {reason}".rstrip(),
    ]


def test_run_show_has_status_and_reason(triforge: Triforge, services: Services) -> None:
    ended = run_state("finished", "finished without training: why", algorithm="grpo: no votes")
    services.say("GET /v1/runs/run-1", ended)
    code, out, _ = triforge("run", "show", "run-1")
    assert (code, out.splitlines()[0]) == (0, "run       run-1 mine [bold]")
    assert "status    finished without training: why\n" in out
    assert "algorithm grpo: no votes\n" in out


@pytest.mark.parametrize("command", ["watch", "show"])
def test_a_run_is_shown_with_its_verdict(
    triforge: Triforge, services: Services, command: str
) -> None:
    services.say("GET /v1/runs/run-1", run_state("finished", verdict=WORSE))
    services.tell("run-1")
    code, out, _ = triforge("run", command, "run-1")
    assert (code, FIELDS in out) == (0, True)


def test_a_queued_run_says_what_it_waits_for(triforge: Triforge, services: Services) -> None:
    first = run_state("running", id="run-0")
    late = run_state("queued", id="run-9", created_at=2.0)
    mine = run_state("queued", created_at=1.0)
    services.say("GET /v1/runs/run-1", mine)
    services.say("GET /v1/runs", Page[RunState](items=(late, mine, first)))
    services.tell("run-1")
    _, out, _ = triforge("run", "watch", "run-1")
    assert out.splitlines()[0] == (
        "run-1 is queued: one run is trained at a time, and it waits for run-0 (running, step 2 of 9)"
    )


def test_families_are_listed_with_what_they_lack(triforge: Triforge, tmp_path: Path) -> None:
    code, out, _ = triforge("env", "list")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} >= set(known())
    if not find_spec("alfworld"):
        assert "[alfworld]'" in out


def test_run_list_has_names_and_reasons(triforge: Triforge, services: Services) -> None:
    services.say("GET /v1/runs", Page[RunState](items=(run_state("failed", "no [/x] here"),)))
    code, out, _ = triforge("run", "list")
    assert code == 0
    for text in ("run-1", "mine [bold]", "2/9", "no [/x] here"):
        assert text in out
    services.say("GET /v1/runs", Page[RunState](items=(run_state("queued", step=-1),)))
    assert " 0/9 " in triforge("run", "list")[1]


@pytest.mark.parametrize("command", ["stop", "resume"])
def test_run_stop_and_resume(triforge: Triforge, services: Services, command: str) -> None:
    services.say(f"POST /v1/runs/run-1/{command}", run_state("stopping"), status=202)
    assert triforge("run", command, "run-1") == (0, "run-1 stopping\n", "")
    services.refuse(f"POST /v1/runs/run-1/{command}", 409, "conflict", "run run-1 is finished")
    assert triforge("run", command, "run-1") == (1, "", "triforge: run run-1 is finished\n")


def test_run_export(triforge: Triforge, services: Services, tmp_path: Path) -> None:
    services.answers["GET /v1/runs/run-1/export"] = (200, "application/octet-stream", b"PAR1")
    assert triforge("run", "export", "run-1", "-o", "out.parquet") == (0, "wrote out.parquet\n", "")
    assert (tmp_path / "out.parquet").read_bytes() == b"PAR1"
    services.refuse("GET /v1/runs/run-1/export", 409, "conflict", "nothing to export")
    assert triforge("run", "export", "run-1", "-o", "other.parquet")[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_what_a_training_has_left_is_started_again_to_be_looked_at(
    triforge: Triforge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for api in APIS:
        monkeypatch.setenv(f"TRIFORGE_{api}_URL", "http://127.0.0.1:1")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.toml").touch()
    again = "triforge up --config there/train.toml --state there --auto-ports"
    for asked in (("run", "show", "run-1"), ("pool", "list")):
        code, _, err = triforge(*asked, "--state", "there")
        assert (code, again in err) == (1, True)
    assert again in triforge("status", "--state", "there")[1]


# ---- status ----


def test_status(triforge: Triforge, services: Services) -> None:
    services.say("GET /readyz", "{}")
    services.say("GET /v1/runs", Page[RunState](items=(run_state(),)))
    code, out, _ = triforge("status")
    assert (code, out.count(" ready ")) == (0, 7)
    assert "run-1" in out
    services.refuse("GET /readyz", 503, "unavailable", "Redis does not answer")
    code, out, _ = triforge("status")
    assert (code, out.count("not ready: Redis does not answer")) == (1, 7)


def test_status_without_deployment(triforge: Triforge, monkeypatch: pytest.MonkeyPatch) -> None:
    assert triforge("status", "--state", "nowhere") == (
        1, "", "triforge: --state: given nowhere, expected the folder of a `triforge up --state`\n",
    )  # fmt: skip
    for api in APIS:
        monkeypatch.setenv(f"TRIFORGE_{api}_URL", "http://127.0.0.1:1")
    code, out, _ = triforge("status")
    assert (code, "start one with `triforge up --config FILE`" in out) == (1, True)


def test_logs_are_those_of_the_state_folder(triforge: Triforge, tmp_path: Path) -> None:
    code, _, err = triforge("logs")
    assert (code, "expected one of none: var/logs has no logs" in err) == (1, True)
    (tmp_path / "var" / "logs").mkdir(parents=True)
    for name in ("trainer", "rollout-1", "rollout-2"):
        (tmp_path / "var" / "logs" / f"{name}.log").write_text(f"old\nnew of {name}\n")
    _, _, err = triforge("logs", "policy")
    assert "given 'policy', expected one of rollout-1, rollout-2, trainer" in err
    command = [sys.executable, "-m", "triforge", "logs", "rollout", "-n", "1"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[1::3] == ["new of rollout-1", "new of rollout-2"]


def test_an_agent_that_is_no_program_begins_no_run(triforge: Triforge, services: Services) -> None:
    code, _, err = triforge("agent", "run", "--pool", "p", "--", "no-such-program")
    assert (code, services.asked) == (2, [])
    assert "no-such-program" in err


def test_who_interrupts_agents_is_told_how_to_go_on(triforge: Triforge, services: Services) -> None:
    services.say("GET /v1/runs/run-1", run_state())
    services.tell("run-1")
    services.refuse("POST /v1/sessions", 429, "busy", "no group waits")
    services.heard["POST /v1/sessions"] = lambda _: os.kill(os.getpid(), signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for jobs
    try:
        command = ("agent", "run", "--run", "run-1", "--keep", "--parallel", "1", "--", "sh", "a b")
        code, out, _ = triforge(*command)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert "triforge run stop run-1" in out
    again = out.partition("go on with ")[2].partition(", or")[0]
    assert shlex.split(again)[-5:] == ["--parallel", "1", "--", "sh", "a b"]
    assert "--keep" in again


# ---- addresses ----


def test_a_folder_in_which_nothing_runs_is_not_another_deployment(
    triforge: Triforge, services: Services, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    services.say("GET /v1/runs", Page[RunState](items=(run_state(),)))
    (tmp_path / "mine").mkdir()
    assert triforge("run", "list", "--state", "mine")[0] == 0, "the environment names it"
    monkeypatch.delenv("TRIFORGE_TRAINER_URL")
    asked = len(services.asked)
    for command in (("run", "list"), ("run", "stop", "run-1"), ("status",)):
        code, _, err = triforge(*command, "--state", "mine")
        assert (code, "no deployment runs in mine" in err) == (1, True)
    (tmp_path / "var" / "logs").mkdir(parents=True)  # as a deployment leaves it that has ended
    assert "no deployment runs in var" in triforge("run", "list")[2]
    assert len(services.asked) == asked


def test_order_of_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"trainer_url": "http://127.0.0.1:5001", "policy_model_url": "http://127.0.0.1:5002"}
    (tmp_path / "addresses.json").write_text(json.dumps(written))
    monkeypatch.setenv("TRIFORGE_POLICY_MODEL_URL", "http://elsewhere:1")
    found = settings(tmp_path)
    assert found.trainer_url == "http://127.0.0.1:5001"
    assert found.policy_model_url == "http://elsewhere:1"
    assert settings(tmp_path / "nothing").trainer_url == "http://127.0.0.1:8004"
    monkeypatch.setenv("TRIFORGE_POLICY_MODEL_URL", "elsewhere")
    with pytest.raises(ConfigError, match="TRIFORGE_POLICY_MODEL_URL"):
        settings(tmp_path)


@pytest.mark.parametrize("named", ["found", "missing", "another"])
def test_commands_are_printed_as_they_can_be_typed(
    triforge: Triforge,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    named: str,
) -> None:
    there = Path(sys.executable).parent
    if named != "found":
        monkeypatch.setenv("PATH", str(tmp_path))
    if named == "another":
        (tmp_path / "triforge").write_text("#!/bin/sh\n")
        (tmp_path / "triforge").chmod(0o755)
    detail = "no run-9; `triforge run list` lists all, triforge train makes one"
    services.refuse("GET /v1/runs/run-9", 404, "not_found", detail)
    _, _, err = triforge("run", "show", "run-9")
    start = "triforge" if named == "found" else f"{there}/triforge"
    assert f"`{start} run list` lists all, {start} train makes one" in err
