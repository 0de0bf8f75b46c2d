"""The family alfworld: what it refuses without its engine, and with it the whole contract and ALFWorld's own loader."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from environments.alfworld import __main__ as writer
from environments.alfworld.engine import Engine
from environments.alfworld.family import (
    FAMILY,
    AlfworldEpisode,
    GeneratorOptions,
    PlayOptions,
)
from environments.alfworld.files import write_game
from environments.alfworld.games import problem
from environments.household.generator import generate
from environments.household.params import params_of
from triforge.environments import registry
from triforge.environments.kit import OneEpisode
from triforge.errors import ConfigError, InputError
from triforge.testing import check_environment, require
from triforge.types import Task

WORLD = generate(count=1, seed=6, options={"rules": "alfworld", "goals": ["clean"]})[0]
GAME = params_of(WORLD)
PYTHON = os.environ.get("ALFWORLD_PYTHON") or (sys.executable if find_spec("alfworld") else "")
live = pytest.mark.skipif(
    not PYTHON,
    reason="alfworld is not installed; `make test-alfworld` installs it beside ours and runs this",
)
SOURCES = {
    "domain": "(define (domain alfred))",
    "grammar": 'x "rhs": "Your task is to: UNKNOWN GOAL." y',
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    return tmp_path


def test_a_game_of_the_household_is_a_task(data: Path) -> None:
    draft = FAMILY.validate({"game": GAME})
    assert draft.params == {"game": GAME}
    assert draft.kind == "clean"
    assert FAMILY.drift(draft.params, draft.params) == 0.0
    menu = FAMILY.rewrite_menu(_task(draft), "harder")
    assert FAMILY.apply_rewrite(_task(draft), menu.combinations[0]).params != draft.params


def test_a_game_file_is_read_and_bound_to_its_bytes(data: Path) -> None:
    path = write_game(data, 0, 1, WORLD, SOURCES)
    name = str(path.relative_to(data))
    draft = FAMILY.validate({"file": name})
    assert draft.kind == "clean"
    assert draft.instruction == FAMILY.validate({"game": GAME}).instruction
    assert FAMILY.validate(draft.params) == draft
    made = FAMILY.generate(count=1, seed=0, options={"source": "files"})
    assert made == [{"file": name, "horizon": 50}]
    path.write_text(path.read_text().replace("alfred", "other "))
    with pytest.raises(InputError, match=r"field sha256: .* is not the file"):
        FAMILY.validate(draft.params)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("no json", "is not JSON"),
        ("[]", "has no pddl_domain, grammar, pddl_problem"),
        ('{"pddl_domain": "", "grammar": "", "pddl_problem": ""}', "announces no task"),
        ('{"pddl_domain": "", "grammar": "", "pddl_problem": "", "solvable": false}', "unsolvable"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name(data: Path, content: str, sentence: str) -> None:
    (data / "game.tw-pddl").write_text(content)
    with pytest.raises(InputError, match=f"game.tw-pddl.*{sentence}"):
        FAMILY.validate({"file": "game.tw-pddl"})


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({}, "expected either game .* or file"),
        ({"game": GAME, "file": "x"}, "expected either game .* or file"),
        ({"game": {**GAME, "colour": "red"}}, "field colour"),
        ({"game": {"goal": {}}}, '"rules": "alfworld"'),
        ({"file": "no/such/file"}, "there is no .*no/such/file"),
        ({"file": "../../etc/passwd"}, "leads out of the data folder"),
    ],
)
def test_a_bad_task_is_refused_and_the_field_is_named(
    data: Path,
    params: dict[str, Any],
    sentence: str,
) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate(params)


def test_missing_data_and_empty_folders_name_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {"source": "files"}
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ConfigError, match="ALFWORLD_DATA is not set; `alfworld-download`"):
        FAMILY.generate(count=1, seed=0, options=dict(files))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"not a folder; `ALFWORLD_DATA=.* alfworld-download`"):
        FAMILY.generate(count=1, seed=0, options=dict(files))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"field folder: there is no game\.tw-pddl below"):
        FAMILY.generate(count=1, seed=0, options=dict(files))
    write_game(tmp_path, 0, 1, WORLD, SOURCES)
    with pytest.raises(InputError, match="has 1 games of these types"):
        FAMILY.generate(count=2, seed=0, options=dict(files))
    with pytest.raises(InputError, match="has 0 games of these types"):
        FAMILY.generate(count=1, seed=0, options={**files, "goals": ["heat"]})


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Engine(processes=1, python=str(tmp_path / "python"))
    with pytest.raises(
        ConfigError,
        match=r"cannot be started with .*pip install -c constraints.txt -e '.\[alfworld\]'",
    ):
        engine.sources()
    if find_spec("alfworld") is None:
        engine = Engine(processes=1)
        with pytest.raises(ConfigError, match=r"No module named 'alfworld'.*pip install"):
            engine.start(problem=problem(WORLD), task="")
        engine.close()
        monkeypatch.delenv("ALFWORLD_PYTHON", raising=False)
        with pytest.raises(ConfigError, match=r"pip install -c constraints.txt -e '.\[alfworld\]'"):
            registry.family("alfworld")


def test_the_page_lists_every_option_of_its_own() -> None:
    page = (Path(writer.__file__).parent / "README.md").read_text()
    rows = [
        [c.strip(" `") for c in line.split("|")] for line in page.splitlines() if line[:1] == "|"
    ]
    listed = {row[1]: row[2] for row in rows}
    for name, info in PlayOptions.model_fields.items():
        assert listed[name] == str(info.default).replace("True", "true"), name
    for name in ("source", "folder", "tries"):
        assert listed[name] == str(GeneratorOptions.model_fields[name].default), name


def _task(draft: Any) -> Task:
    return Task(
        id="t",
        pool_id="p",
        slot="t",
        family="alfworld",
        instruction=draft.instruction,
        params=draft.params,
    )


# ---- with the engine --------------------------------------------------------------------------------------------

SMALL = {"rooms": ["bathroom"], "receptacles": [4, 6], "things": [3, 4], "goals": ["place"]}


@live
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("options", [{}, {"actions": "numbered", "answer": "boxed"}], ids=str)
async def test_the_family_keeps_the_contract(options: dict[str, Any]) -> None:
    wanted: Any = {**SMALL, "horizon": 20}
    require(
        await check_environment(
            FAMILY, options=options, generator_options=wanted, count=1, max_steps=30
        )
    )


@live
def test_a_game_that_the_engine_cannot_load_is_refused_in_a_sentence() -> None:
    engine = Engine(processes=1, python=PYTHON)
    with pytest.raises(InputError, match="the engine cannot load the game"):
        engine.start(problem="(define (problem broken)", task="")
    engine.close()


@live
def test_memory_changes_nothing_that_the_engine_says() -> None:
    said = []
    for memo in (True, False):
        engine = Engine(memo=memo, processes=1, python=PYTHON)
        game = engine.start(problem=problem(WORLD), task="x")
        said.append([game.first, *(game.step(command) for command in game.first.commands[:6])])
        engine.close()
    assert said[0] == said[1]


STOCK = """
import json, sys
from alfworld.agents.environment import get_environment
config, plans = map(json.loads, sys.argv[1:])  # the engine writes over sys.argv
env = get_environment("AlfredTWEnv")(config, train_eval="train").init_env(batch_size=1)
observation, infos = env.reset()
for command in plans[infos["extra.gamefile"][0]]:
    observation, scores, dones, infos = env.step([command])
print("won", infos["won"][0], scores[0], dones[0])
"""


@live
@pytest.mark.timeout(600)
def test_alfworlds_own_loader_plays_our_files(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        writer.main(
            ["--out", str(data), "--count", "1", "--seed", "3", "--generate", json.dumps(SMALL)]
        )
        == 0
    )
    path, tally = capsys.readouterr().out.splitlines()
    assert tally.startswith("1 kept")
    task = _task(FAMILY.validate(FAMILY.generate(count=1, seed=0, options={"source": "files"})[0]))
    gold = FAMILY.gold(task, {})
    assert gold
    config = {
        "dataset": {"data_path": str(data / "json_2.1.1/train"), "num_train_games": -1},
        "env": {
            "goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6], "domain_randomization": False,
            "expert_type": "planner",
        },
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": 50}},
    }  # fmt: skip
    done = subprocess.run(
        [PYTHON, "-c", STOCK, json.dumps(config), json.dumps({path: list(gold)})],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "won True 1 True", done.stdout


async def test_a_game_that_starts_after_its_episode_was_closed_is_given_back() -> None:
    asked, go, ended = threading.Event(), threading.Event(), threading.Event()

    class Left(AlfworldEpisode):
        def __init__(self) -> None:
            pass

        def leave(self, *, sound: bool) -> None:
            ended.set()

    def begin(task: Task, seed: int) -> AlfworldEpisode:
        asked.set()
        assert go.wait(60)
        return Left()

    environment = OneEpisode("alfworld", begin, blocks=True)
    resetting = asyncio.create_task(
        environment.reset(_task(FAMILY.validate({"game": GAME})), seed=0)
    )
    assert await asyncio.to_thread(asked.wait, 60)
    resetting.cancel()
    await environment.close()
    go.set()
    assert await asyncio.to_thread(ended.wait, 60)
