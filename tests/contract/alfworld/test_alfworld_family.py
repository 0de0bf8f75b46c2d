"""The family alfworld: its refusals without the engine, and with it the whole contract and ALFWorld's own loader."""

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

from environments.alfworld import family as alfworld
from environments.alfworld.engine import Engine, engine
from environments.alfworld.family import FAMILY, AlfworldEpisode, GeneratorOptions
from environments.household.generator import generate
from environments.household.params import AnswerOptions
from environments.household.wording import announce
from scripts.real_alfworld.game_files import problem, write_game
from triforge.environments import registry
from triforge.environments.kit import OneEpisode
from triforge.errors import ConfigError, InputError
from triforge.rollout.protocols import TaskDraft
from triforge.testing import check_environment, require
from triforge.types import Task

WORLD = generate(count=1, seed=6, options={"rules": "alfworld", "goals": ["clean"]})[0]
PYTHON = os.environ.get("ALFWORLD_PYTHON") or (sys.executable if find_spec("alfworld") else "")
live = pytest.mark.skipif(
    not PYTHON,
    reason="alfworld is not installed; `make test-alfworld` installs it and runs this",
)
SOURCES = {
    "domain": "(define (domain alfred))",
    "grammar": 'x "rhs": "Your task is to: UNKNOWN GOAL." y',
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    return tmp_path


def test_a_game_file_is_read_and_bound_to_its_bytes(data: Path) -> None:
    path = write_game(data, 0, 1, WORLD, SOURCES)
    name = str(path.relative_to(data))
    draft = FAMILY.validate({"file": name})
    assert draft.kind == "clean"
    assert draft.instruction == announce(WORLD)
    assert FAMILY.validate(draft.params) == draft
    made = FAMILY.generate(count=1, seed=0, options={})
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
        ({}, "field file"),
        ({"file": "x", "colour": "red"}, "field colour"),
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
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ConfigError, match="ALFWORLD_DATA is not set; `alfworld-download`"):
        FAMILY.generate(count=1, seed=0, options={})
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"not a folder; `ALFWORLD_DATA=.* alfworld-download`"):
        FAMILY.generate(count=1, seed=0, options={})
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"field folder: there is no game\.tw-pddl below"):
        FAMILY.generate(count=1, seed=0, options={})
    write_game(tmp_path, 0, 1, WORLD, SOURCES)
    with pytest.raises(InputError, match="has 1 games of these types"):
        FAMILY.generate(count=2, seed=0, options={})
    with pytest.raises(InputError, match="has 0 games of these types"):
        FAMILY.generate(count=1, seed=0, options={"goals": ["heat"]})


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = Engine(processes=1, python=str(tmp_path / "python"))
    with pytest.raises(
        ConfigError,
        match=r"cannot be started with .*pip install -c constraints.txt -e '.\[alfworld\]'",
    ):
        one.sources()
    if find_spec("alfworld") is None:
        one = Engine(processes=1)
        with pytest.raises(ConfigError, match=r"No module named 'alfworld'.*pip install"):
            one.start(problem=problem(WORLD), task="")
        one.close()
        monkeypatch.delenv("ALFWORLD_PYTHON", raising=False)
        with pytest.raises(ConfigError, match=r"pip install -c constraints.txt -e '.\[alfworld\]'"):
            registry.family("alfworld")


def test_the_page_lists_every_option_of_its_own() -> None:
    page = (Path(alfworld.__file__).parent / "README.md").read_text()
    rows = [
        [c.strip(" `") for c in line.split("|")] for line in page.splitlines() if line[:1] == "|"
    ]
    listed = {row[1]: row[2] for row in rows}
    assert set(AnswerOptions.model_fields) | set(GeneratorOptions.model_fields) <= set(listed)
    assert listed["folder"] == GeneratorOptions.model_fields["folder"].default


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


@live
@pytest.mark.timeout(1200)
async def test_the_family_keeps_the_contract(data: Path) -> None:
    write_game(data, 0, 1, WORLD, engine().sources())
    short: Any = {"horizon": 20}
    boxed: Any = {"answer": "boxed"}
    made = await check_environment(
        FAMILY, options=boxed, generator_options=short, count=1, max_steps=30
    )
    require(made)


@live
def test_a_game_that_the_engine_cannot_load_is_refused_in_a_sentence() -> None:
    one = Engine(processes=1, python=PYTHON)
    with pytest.raises(InputError, match="the engine cannot load the game"):
        one.start(problem="(define (problem broken)", task="")
    one.close()


@live
def test_memory_changes_no_answer_of_the_engine() -> None:
    answers = []
    for memo in (True, False):
        one = Engine(memo=memo, processes=1, python=PYTHON)
        game = one.start(problem=problem(WORLD), task="x")
        answers.append([game.first, *(game.step(command) for command in game.first.commands[:6])])
        one.close()
    assert answers[0] == answers[1]


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
def test_alfworlds_own_loader_plays_our_files(data: Path) -> None:
    path = str(write_game(data, 0, 3, WORLD, engine().sources()))
    task = _task(FAMILY.validate(FAMILY.generate(count=1, seed=0, options={})[0]))
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
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    class Left(AlfworldEpisode):
        def __init__(self) -> None:
            pass

        def leave(self, *, sound: bool) -> None:
            ended.set()

    def begin(task: Task, seed: int) -> AlfworldEpisode:
        begun.set()
        assert go.wait(60)
        return Left()

    environment = OneEpisode("alfworld", begin, blocks=True)
    resetting = asyncio.create_task(
        environment.reset(_task(TaskDraft(params={}, instruction="")), seed=0)
    )
    assert await asyncio.to_thread(begun.wait, 60)
    resetting.cancel()
    await environment.close()
    go.set()
    assert await asyncio.to_thread(ended.wait, 60)
