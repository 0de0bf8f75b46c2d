"""`triforge train`: what it asks of a deployment that runs, what it says at the end, and what it refuses before that."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file

import triforge as library
from services.env_adapter.pools.creation import PoolMaker
from tests.unit.cli.conftest import FIELDS, POOL, PRINTED, WORSE, Services, Triforge, run_state
from tests.unit.cli.test_checks import NO_SYSTEM
from tests.unit.cli.test_evaluate import weights
from triforge.cli.model_folders import tiny_folder
from triforge.cli.started import deployment, others_ended
from triforge.cli.terminal import program
from triforge.cli.train import follow
from triforge.cli.training import Training
from triforge.environments.registry import family
from triforge.environments.served import ServedFunction
from triforge.errors import (
    ConfigError,
    EnvError,
    InputError,
    TriforgeError,
    UnavailableError,
)
from triforge.store.database import open_database
from triforge.testing.model_folders import chatml_folder, words_folder
from triforge.types import (
    Event,
    GenerateSpec,
    Page,
    PoolRequest,
    Proposal,
    RunState,
    RunStep,
    WeightsRecord,
)

ASKED = ("train", "--env", "household", "--preset", "grpo", "--steps", "3")
GRPO = "grpo: estimator group"


def step(number: int, success: float) -> str:
    metrics = {"eval/sampled": success, "eval/sampled_episodes": 16.0}
    return RunStep(
        run_id="run-1", step=number, at=0.0, policy_version=4 + number, reward_version=0, metrics=metrics
    ).model_dump_json()  # fmt: skip


@pytest.fixture
def trained(services: Services, monkeypatch: pytest.MonkeyPatch) -> Services:
    """A deployment on which every run finishes."""
    monkeypatch.delenv("TRIFORGE_REWRITER_MODEL_URL")
    services.say("GET /readyz", "{}")
    services.say("POST /v1/pools", POOL, status=201)
    services.say("GET /v1/pools/pool-1", POOL)
    services.say("GET /v1/pools/pool-1/proposals", Page[Proposal](items=()))
    services.say("POST /v1/runs", run_state("queued", algorithm=GRPO), status=201)
    services.say("GET /v1/runs/run-1", run_state("finished"))
    services.say("GET /v1/runs/run-1/steps", f'{{"items": [{step(0, 0.25)}, {step(3, 0.5)}]}}')
    versions = Page[WeightsRecord](items=(weights(4), weights(7)))
    services.say("GET /v1/runs/run-1/weights", versions)
    services.tell("run-1", Event(kind="run", run_id="run-1", at=0.0, data={"status": "finished"}))
    return services


def test_train_on_running_deployment(triforge: Triforge, trained: Services, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "base.toml").write_text("[algorithm.overrides]\nlam = 0.15\n")
    given = ("--model", "mine", "--config", "base.toml", "--tasks", "8", "--heldout", "16")
    code, out, err = triforge(*ASKED, *given, "--set", "run.seed=7", "--generate", '{"goals": []}')
    assert (code, err) == (0, "")
    bodies = {what: body for what, body in trained.asked if body}
    assert bodies["POST /v1/pools"]["generate"] == {
        "count": 8, "heldout": 16, "seed": 7, "options": {"goals": []},
    }  # fmt: skip
    config = bodies["POST /v1/runs"]["config"]
    assert config["models"] == {"policy": {"path": str(tmp_path / "mine")}}
    assert config["algorithm"] == {"preset": "grpo"}
    assert config["run"] == {"name": "household-grpo", "steps": 3, "eval_tasks": 16, "seed": 7}
    assert config["adaptation"] == {"controller": "none"}, "no rewriter was named"
    for text in (GRPO, "0.250", "0.500", "/w/policy/7"):
        assert text in out


def test_train_says_what_the_deployment_sets(triforge: Triforge, trained: Services) -> None:
    config = {
        "run": {"steps": 3, "groups_per_step": 2},
        "trainer": {"policy": {"learning_rate": 1}},
    }
    trained.say("POST /v1/runs", run_state("queued", config=config), status=201)
    _, out, _ = triforge(*ASKED, "--model", ".", "--set", "trainer.policy.learning_rate=1")
    assert "set by the document of the deployment: run.groups_per_step=2; --set" in out
    _, out, _ = triforge(*ASKED, "--model", ".", "--set", "run.groups_per_step=2")
    assert "trainer.policy.learning_rate=1; --set" in out


def test_train_says_where_its_dashboard_is(triforge: Triforge, trained: Services) -> None:
    _, out, _ = triforge(*ASKED, "--model", ".")
    assert f"dashboard: {trained.url}/runs/run-1" in out


def test_a_pool_that_the_running_deployment_cannot_play_is_refused_before_the_model(
    trained: Services, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine)
    monkeypatch.setenv("TRIFORGE_TRAINER_URL", trained.url)
    (mine / "up.toml").write_text('[env_adapter.options]\nwording = "terse"\n')
    (mine / "var").mkdir()
    (mine / "var" / "addresses.json").write_text(json.dumps({"config": str(mine / "up.toml")}))
    with pytest.raises(ConfigError, match=r"cannot be played.* wording(.|\n)* --state"):
        library.train(**PROMPTS | {"model": "tiny"})
    assert [what for what, _ in trained.asked] == ["GET /readyz"]


def test_the_document_of_a_deployment_has_no_options_of_a_new_pool(mine: Path) -> None:
    given = {"model": "model", "overrides": {"env_adapter": {"options": {"wording": "terse"}}}}
    new = Training(env="household", options={"horizon": 9}, **given)
    document = new.without_models()
    options = {"horizon": 9, "wording": "terse"}
    assert new.request(document)[1]["options"] == options, "evaluations play them, too"
    served = new.of_deployment(document)
    assert ("options" in served["env_adapter"], "name" in served["run"]) == (False, False)
    old = Training(pool="kitchen", **given)
    assert old.of_deployment(old.without_models())["env_adapter"]["options"]
    assert document["env_adapter"]["options"] == options


@pytest.mark.parametrize("given", [{"steps": 14}, {"overrides": {"run": {"steps": 14}}}])
def test_a_resumed_run_takes_no_other_options(
    trained: Services, tmp_path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"--resume: given with .* --model FOLDER"):
        library.train(resume="run-1", state=tmp_path, **given)
    assert trained.asked == []


def test_python_trains_as_the_command_does(trained: Services, tmp_path: Path) -> None:
    result = library.train(tmp_path, "household", preset="grpo", steps=3, state=tmp_path / "state")
    assert (result.run.status, str(result.model)) == ("finished", "/w/policy/7")
    assert (result.before["sampled"]["success"], result.after["sampled"]["success"]) == (0.25, 0.5)


def test_python_takes_data_and_reward(
    triforge: Triforge, trained: Services, tmp_path: Path
) -> None:
    given = {"data": "rows.jsonl", "reward": "mine:score"}
    library.train(tmp_path, "household", preset="grpo", options={"wording": "terse"}, **given)
    triforge(
        *ASKED, "--model", ".", "--data", given["data"], "--reward", given["reward"],
        "--options", '{"wording": "terse"}',
    )  # fmt: skip
    pools = [body for what, body in trained.asked if what == "POST /v1/pools"]
    assert [pool["generate"]["options"] for pool in pools] == [
        {"data": str(tmp_path / "rows.jsonl")}
    ] * 2
    assert [pool["options"] for pool in pools] == [
        {"wording": "terse", "reward": given["reward"]}
    ] * 2


def test_python_takes_rows_and_a_function_of_its_own(
    trained: Services,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("c")))
    served: list[Any] = []

    def score(completions: list[str], answer: list[str]) -> list[float]:
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    def asked(pool: Any) -> None:  # what env_adapter does meanwhile
        function = ServedFunction(pool["options"]["reward"])
        served.append(function(completions=["a", "b"], answer=["a", "a"]))

    trained.heard = {"POST /v1/pools": asked}
    rows = [{"prompt": "Say a.", "answer": "a"}]
    library.train(tmp_path, reward=score, data=rows, steps=3, state=tmp_path / "state")
    (pool,) = [body for what, body in trained.asked if what == "POST /v1/pools"]
    assert (pool["environment"], served) == ("prompts", [[1.0, 0.0]])
    assert pool["options"]["reward"].endswith("#score(completions, answer)")
    assert Path(pool["generate"]["options"]["data"]).read_text() == f"{json.dumps(rows[0])}\n"
    with pytest.raises(EnvError, match="resume the run where the function is"):
        ServedFunction(pool["options"]["reward"])
    trained.say("GET /v1/pools/pool-1", POOL.model_copy(update={"options": pool["options"]}))
    (tmp_path / "state" / "train.toml").touch()
    with pytest.raises(EnvError, match="resume the run where the function is"):
        library.train(resume="run-1", state=tmp_path / "state")
    assert library.train(resume="run-1", reward=score, state=tmp_path / "state").run.id == "run-1"


REWARD = """
def score(completions, answer, **_):
    return [0.0]
def broken(completions, answer, **_):
    return [float(text == right) for text, right in zip(completons, answer)]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, prompts and a reward function of the user's own, on a machine where nothing runs."""
    for name in [name for name in os.environ if name.startswith("TRIFORGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(tmp_path)
    words_folder(tmp_path / "model", ["yes", "no"])
    tensors = {"lm_head.weight": np.zeros((7, 4), np.float32)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    (tmp_path / "my_reward.py").write_text(REWARD)
    rows = [json.dumps({"prompt": f"{n}?", "answer": n}) for n in range(40)]
    (tmp_path / "good.jsonl").write_text("\n".join(rows))
    (tmp_path / "bad.jsonl").write_text("\n".join([*rows[:5], "{", *rows[5:]]))
    (tmp_path / "tasks.jsonl").write_text('{"params": {}}\n')
    return tmp_path


PROMPTS = {
    "model": "model", "env": "prompts", "data": "good.jsonl", "reward": "my_reward:score", "tasks": 32, "heldout": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"env": "houshold"}, "environment 'houshold' is unknown"),
        ({"data": "bad.jsonl"}, "1 of 41 lines refused; the first is line 6"),
        ({"reward": "my_reward:scor"}, "'my_reward:scor' cannot be imported"),
        ({"reward": "my_reward:broken"}, "NameError: name 'completons' is not defined"),
        ({"options": {"tries": 3}}, "tries"),
        ({"generate": {"tries": 3}}, "tries"),
        ({"tasks": 400}, "asked for 408 different tasks"),
        ({"tasks": 4, "overrides": {"run": {"groups_per_step": 5}}}, "has 4 training tasks"),
        ({"overrides": {"run": {"stps": 5}}}, "run.stps: unknown field"),
        ({"preset": "gpro"}, "algorithm.preset: given 'gpro'"),
        ({"overrides": {"env_adapter": {"options": {"tries": 3}}}}, "options: field tries"),
        ({"overrides": {"models": {"policy": {"path": "nowhere"}}}, "model": ""}, "nowhere"),
        ({"file": "tasks.jsonl", "env": "household"}, "line 1"),
    ],
)
def test_what_the_services_would_refuse_is_refused_before_they_start(
    mine: Path, triforge: Triforge, changed: dict[str, Any], reason: str
) -> None:
    asked: dict[str, Any] = PROMPTS | changed
    with pytest.raises(TriforgeError, match=re.escape(reason)) as refused:
        library.train(**asked)
    assert not (mine / "var" / "logs").exists(), "nothing was started"
    arguments = [
        f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"
        for name, value in asked.items() if name != "overrides" and value != ""
    ]  # fmt: skip
    for section, fields in asked.get("overrides", {}).items():
        arguments += [f"--set={section}.{name}={json.dumps(v)}" for name, v in fields.items()]
    if asked["model"]:
        code, _, err = triforge("train", *arguments)
        assert code == 1
        named = re.compile(r"[a-z]+-\d{9,}")  # a pool that is made is named after the second
        shown, wanted = (named.sub("POOL", one) for one in (err, refused.value.detail))
        assert shown.startswith(f"triforge: {wanted}")


@pytest.fixture
def kept(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with what a deployment has left in its state folder: a pool of four tasks."""
    monkeypatch.chdir(mine)
    database = open_database(f"sqlite:///{mine / 'var' / 'triforge.sqlite'}")
    request = PoolRequest(
        name="kitchen", environment="household", generate=GenerateSpec(count=4, heldout=2, seed=1)
    )
    PoolMaker(database, family).create(request, [])
    database.close()
    (mine / "var" / "train.toml").touch()
    return mine


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"pool": "chicken"}, "pool 'chicken' does not exist in var"),
        ({"options": {"tries": 3}}, "the pool 'kitchen' cannot be played: household options: field tries"),
        ({"overrides": {"run": {"groups_per_step": 5}}}, "the pool 'kitchen' has 4 training tasks"),
        ({"resume": "run-77", "model": "", "pool": "", "preset": ""}, "run 'run-77' does not exist in var"),
        ({"state": "elsewhere"}, "pool 'kitchen' does not exist in elsewhere"),
        ({"model": "nowhere"}, "models.policy: given 'nowhere'"),
    ],
)  # fmt: skip
def test_kept_state_is_checked(kept: Path, changed: dict[str, Any], reason: str) -> None:
    asked: dict[str, Any] = {"model": "model", "pool": "kitchen", "preset": "grpo"} | changed
    with pytest.raises(TriforgeError, match=re.escape(reason)):
        library.train(**asked)
    assert not (kept / "var" / "logs").exists(), "nothing was started"


def test_a_kept_pool_whose_system_message_the_policy_refuses_is_found(kept: Path) -> None:
    chatml_folder(kept / "chatml")
    (kept / "chatml" / "chat_template.jinja").write_text(NO_SYSTEM)
    options = {"wording": "alfworld"}
    with pytest.raises(ConfigError, match="takes no system message"):
        library.train("chatml", pool="kitchen", preset="grpo", options=options)
    assert not (kept / "var" / "logs").exists(), "nothing was started"


def test_a_folder_without_weights_is_refused_before_it_has_a_learning_rate(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(mine)
    (mine / "model" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds no safetensors file"):
        library.train(**PROMPTS)
    assert "learning rate" not in capsys.readouterr().out


def test_pool_is_checked_before_the_model(trained: Services, tmp_path: Path) -> None:
    check = "GET /v1/pools/pool-1/check"
    trained.refuse(check, 422, "input", "household options: field tries: unknown")
    with pytest.raises(ConfigError, match=r"the pool 'kitchen' cannot be played: .* field tries"):
        library.train("tiny", pool="pool-1", options={"tries": 3}, state=tmp_path)
    assert [what for what, _ in trained.asked][1:] == ["GET /v1/pools/pool-1", check]


@pytest.mark.parametrize(
    ("file", "config", "reason"),
    [
        ("tokenizer_config.json", {}, "no default chat template"),
        (
            "config.json",
            {"model_type": "t5"},
            "'t5', which the installed transformers does not know as a causal",
        ),
        (
            "config.json",
            {"model_type": "gemma2", "layer_types": ["sliding_attention"]},
            "full attention only",
        ),
        (
            "config.json",
            {"model_type": "llama", "num_hidden_layers": 99},
            "num_hidden_layers is 99",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_is_refused_before_the_services_start(
    mine: Path, triforge: Triforge, file: str, config: dict[str, Any], reason: str
) -> None:
    (mine / "model" / file).write_text(json.dumps(config))
    with pytest.raises(TriforgeError, match=re.escape(reason)):
        library.train(**PROMPTS)
    (mine / "up.toml").write_text('[models.policy]\npath = "model"\n[adaptation]\ncontroller = "none"\n[algorithm]\npreset = "grpo"\n')  # fmt: skip
    code, _, err = triforge("up", "--config", "up.toml", "--auto-ports")
    assert (code, reason in err) == (1, True)
    other = ("up", "--config", "up.toml", "--set", "models.policy.path=nowhere", "--auto-ports")
    assert "given 'nowhere'" in triforge(*other)[2]
    assert not (mine / "var" / "logs").exists(), "nothing was started"


@pytest.mark.parametrize("broker", ["exit 3", "exec sleep 60"])
async def test_a_start_that_fails_leaves_the_document_of_the_last_training(
    mine: Path, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    (mine / "var").mkdir()
    (mine / "var" / "train.toml").write_text("# the last\n")
    (mine / "valkey-server").write_text(f"#!/bin/sh\n{broker}\n")
    (mine / "valkey-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(mine), prepend=":")
    document = {
        "adaptation": {"controller": "none"}, "algorithm": {"preset": "grpo"}, "models": {"policy": {"path": str(mine / "model")}},
    }  # fmt: skip
    reported: list[str] = []

    async def start() -> None:
        async with deployment(document, mine / "var", reported.append):
            raise AssertionError

    starting, interrupted = asyncio.create_task(start()), "sleep" in broker
    await asyncio.sleep(0)  # until it waits for the broker
    if interrupted:
        starting.cancel()
    with pytest.raises(asyncio.CancelledError if interrupted else UnavailableError):
        await starting
    assert (mine / "var" / "train.toml").read_text() == "# the last\n"
    assert ("stopped before a run was made" in reported) == interrupted


@pytest.mark.parametrize(
    ("rows", "asked", "counts"),
    [
        (60, {}, (48, 12)),
        (1000, {}, (872, 128)),
        (60, {"tasks": 50}, (50, 128)),
        (60, {"tasks": 50, "heldout": 0}, (50, 0)),
    ],
)
def test_a_file_is_taken_whole_unless_a_number_is_asked_for(
    tmp_path: Path, rows: int, asked: dict[str, int], counts: tuple[int, int]
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "x"}\n\n' * rows)
    assert Training(generate={"data": str(data)}, **asked).counts() == counts


@pytest.mark.usefixtures("trained")
def test_the_command_that_serves_the_pages_again_says_where_they_are(
    triforge: Triforge, tmp_path: Path
) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var/train.toml").touch()  # the deployment has ended
    out = triforge(*ASKED, "--model", ".")[1]
    assert "triforge up --config var/train.toml --auto-ports\n" in out
    assert ":8005" not in out  # its address depends on how it is started


def test_tiny_model_depends_on_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_family_of_two.py").write_text("one = 1")
    first = tiny_folder("my_family_of_two:FAMILY", {}, {})
    assert first == tiny_folder("my_family_of_two:FAMILY", {}, {})
    (tmp_path / "my_family_of_two.py").write_text("two = 2")
    assert first != tiny_folder("my_family_of_two:FAMILY", {}, {})


@pytest.mark.parametrize("status", ["failed", "finished"])
def test_run_without_update(triforge: Triforge, trained: Services, status: str) -> None:
    config = {"models": {"policy": {"path": "/w/policy/4"}}}
    trained.say("GET /v1/runs/run-1", run_state(status, config=config))
    trained.say("GET /v1/runs/run-1/weights", Page[WeightsRecord](items=(weights(4),)))
    _, out, _ = triforge(*ASKED, "--model", ".")
    assert "trained model" not in out
    assert "no update was made; the model is unchanged: /w/policy/4" in out
    assert library.train(".", "household", preset="grpo").model is None


def test_a_training_ends_with_its_verdict_and_the_command_to_try(
    triforge: Triforge, trained: Services, tmp_path: Path
) -> None:
    trained.say("GET /v1/runs/run-1", run_state("finished", verdict=WORSE))
    code, out, _ = triforge(*ASKED, "--model", ".", "--generate", '{"goals": []}')
    command = f"{program()} {' '.join(ASKED)} --model . --generate '{{\"goals\": []}}'"
    assert (code, PRINTED.format(command) in out) == (0, True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "train.toml").touch()
    _, out, _ = triforge("train", "--resume", "run-1")
    assert FIELDS in out


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (("--steps", "3", "--set", "run.steps=6", "--set=run.seed=1"), "--set run.seed=1 --steps 12 --heldout 300"),
        (("--heldout=9", "--seed", "2", "--set", "run.eval_tasks=9"), "--seed 2 --steps 12 --heldout 300"),
        (("--steps=3", "--data", "rows.csv"), "--data rows.csv --steps 12"),
    ],
)  # fmt: skip
def test_the_command_to_try_replaces_what_was_given(
    triforge: Triforge, trained: Services, given: tuple[str, ...], printed: str
) -> None:
    verdict = WORSE.model_copy(update={"options": ("--steps 12", "--heldout 300")})
    trained.say("GET /v1/runs/run-1", run_state("finished", verdict=verdict))
    _, out, _ = triforge(*ASKED, "--model", ".", *given)
    own = " ".join(word for word in ASKED if word not in ("--steps", "3"))
    assert f"next: smaller steps: {program()} {own} --model . {printed}\n" in out


def test_without_the_command_the_fields_to_change_are_named(
    triforge: Triforge, services: Services
) -> None:
    verdict = WORSE.model_copy(update={"options": ("--steps 12", "--heldout 300")})
    services.say("GET /v1/runs/run-1", run_state("finished", verdict=verdict))
    _, out, _ = triforge("run", "show", "run-1")
    assert "next: smaller steps, with run.steps = 12\n" in out, (
        "a pool that exists has no more tasks"
    )


def test_a_result_is_shown_in_a_few_lines(trained: Services, tmp_path: Path) -> None:
    trained.say("GET /v1/runs/run-1", run_state("finished", verdict=WORSE))
    shown = repr(library.train(tmp_path, "household", preset="grpo", state=tmp_path / "state"))
    assert len(shown) < 400
    for text in ("run-1", WORSE.text, "0.250", "0.500", "/w/policy/7"):
        assert text in shown


def test_from_python_the_verdict_is_printed_and_returned(
    trained: Services, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    trained.say("GET /v1/runs/run-1", run_state("finished", verdict=WORSE))
    result = library.train(".", "household", preset="grpo")
    assert result.verdict == WORSE
    assert capsys.readouterr().out.count(WORSE.text) == 1


def test_end_names_next_commands(triforge: Triforge, trained: Services, tmp_path: Path) -> None:
    up, look = "triforge up --config", "triforge run show run-1 --step 1 --state there"
    _, out, _ = triforge(*ASKED, "--model", ".", "--state", "there")
    assert (look in out, up in out) == (True, False)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.toml").touch()  # as a deployment leaves it that has ended
    _, out, _ = triforge(*ASKED, "--model", ".", "--state", "there")
    assert f"{up} there/train.toml --state there --auto-ports" in out
    assert look in out


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--model", "nowhere"), "models.policy: given 'nowhere', expected a model folder"),
        (("--model", ".", "--reward-model", "tiny"), "models.reward: given 'tiny', expected"),
        (("--model", ".", "--generate", "[]"), "expected a JSON object"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anybody_is_asked(
    triforge: Triforge, trained: Services, given: tuple[str, ...], reason: str
) -> None:
    code, _, err = triforge(*ASKED, *given)
    assert code == 1
    assert reason in err
    assert trained.asked in ([], [("GET /readyz", None)]), "it was only looked for"


def test_a_model_of_the_hub_without_a_network_is_refused_with_what_to_do(
    triforge: Triforge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = triforge(*ASKED, "--model", "no-such/model-at-all")
    assert code == 1
    assert "hf download no-such/model-at-all --local-dir FOLDER" in err


def test_a_failed_run_ends_with_its_reason(triforge: Triforge, trained: Services) -> None:
    trained.say("GET /v1/runs/run-1", run_state("failed", "the pool is gone"))
    code, out, _ = triforge(*ASKED, "--model", ".")
    assert code == 1
    assert "run-1 at step 2 of 9: failed the pool is gone" in out


def test_resume_of_stopped_run(triforge: Triforge, trained: Services, tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "train.toml").write_text("")
    trained.say("GET /v1/runs/run-1", run_state("stopped"))
    trained.say("POST /v1/runs/run-1/resume", run_state("queued"), status=202)
    triforge("train", "--resume", "run-1")
    assert "POST /v1/runs/run-1/resume" in [what for what, _ in trained.asked]
    assert "POST /v1/pools" not in json.dumps(trained.asked)


class Playing:
    """A trainer whose run goes on until it is asked to stop, or has ended with `status`."""

    def __init__(self, status: str = "running") -> None:
        self.asked, self.status = asyncio.Event(), status

    async def run(self, run_id: str) -> RunState:
        return run_state("stopped" if self.asked.is_set() else self.status, id=run_id)

    async def stop(self, run_id: str) -> RunState:
        self.asked.set()
        return await self.run(run_id)

    async def events(self, run_id: str) -> AsyncIterator[tuple[str, Event]]:
        yield "0", Event(kind="group", run_id=run_id, at=0.0)
        await self.asked.wait()


async def interrupted(trainer: Any) -> list[str]:
    """Return what `follow` says when it is cancelled."""
    lines: list[str] = []
    work = follow(Path("here"), run_state("queued"), trainer, Console(quiet=True), lines.append)
    following = asyncio.create_task(work)
    await asyncio.sleep(0.01)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    return lines


@pytest.mark.parametrize(
    ("status", "last"),
    [
        ("running", "run-1 stopped at step 2 of 9; to go on with it: triforge train --resume run-1 --state here"),
        ("finished", "run-1 finished at step 2 of 9"),
    ],
)  # fmt: skip
async def test_ctrl_c_stops_the_run_and_says_how_to_go_on(status: str, last: str) -> None:
    lines = await interrupted(Playing(status))
    assert lines[-1] == f"run {last}"


class Gone(Playing):
    """A trainer that no longer answers when the run is to be stopped."""

    async def run(self, run_id: str) -> RunState:
        if self.status == "gone":
            raise UnavailableError("no answer")
        self.status = "gone"
        return run_state("running", id=run_id)


async def test_ctrl_c_without_a_trainer_claims_nothing() -> None:
    lines = await interrupted(Gone())
    assert ("queued" in lines[-1], "no answer" in lines[-1]) == (False, True)
    assert lines[-1].endswith("triforge train --resume run-1 --state here")


class Busy:
    """A trainer whose other run ends at the third look."""

    looks = 0

    async def runs(self) -> list[RunState]:
        self.looks += 1
        return [run_state("running" if self.looks < 3 else "finished", id="run-2")]


async def test_a_deployment_stays_for_the_runs_of_other_commands() -> None:
    trainer: Any = Busy()
    lines: list[str] = []
    await others_ended(trainer, lines.append, pause_s=0.0)
    assert (trainer.looks, len(lines), "run-2" in lines[0]) == (3, 1, True)


@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("", "on the trainer's machine"),
        ("config.json", "a complete Hugging Face folder"),
        ("adapter_config.json", "a PEFT adapter"),
    ],
)
def test_agents_end_with_what_training_ends_with(
    triforge: Triforge, trained: Services, tmp_path: Path, file: str, form: str
) -> None:
    if file:
        row = weights(7).model_copy(update={"uri": str(tmp_path / "v7")})
        (tmp_path / "v7").mkdir()
        (tmp_path / "v7" / file).touch()
        trained.say("GET /v1/runs/run-1/weights", Page[WeightsRecord](items=(row,)))
    code, out, _ = triforge("agent", "run", "--run", "run-1", "--", "true")
    assert code == 0
    for text in ("0.250", "0.500", "7", form):
        assert text in out
    assert ("Hugging Face" in out) == (file == "config.json")
