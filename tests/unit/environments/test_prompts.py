"""Prompts with a reward function: called as TRL calls one, refused where it cannot be, unmeasured where it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from environments.prompts.family import FAMILY
from services.env_adapter.pools.creation import PoolMaker
from tests.unit.environments.tasks import task_of
from triforge.environments import plugins
from triforge.environments.tasks import CheckedTasks, generate
from triforge.errors import EnvError, InputError
from triforge.store.database import open_database
from triforge.testing.check_environment import check_environment, require
from triforge.types import GenerateSpec, Params, PoolRequest

MODULE = """
CALLS = []
def score(prompts, completions, answer, **columns):
    CALLS.append((prompts, completions, answer, columns))
    return [float(text == right) for text, right in zip(completions, answer)]
def few(completions): return [float(len(completions[0]))]
def chat(completions, **_): return [float(len(completions[0][0]["content"]))]
def nothing(completions): return [None]
def many(completions): return [1.0, 2.0]
def endless(completions): return [float("inf")]
def raises(completions): raise KeyError("no such word")
"""
ROW: Params = {"prompt": "2 + 2?", "columns": {"answer": "4", "level": 1}}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def options(reward: str) -> Params:
    return {"reward": f"my_rewards:{reward}"}


async def play(reward: str, response: str, **changed: Any) -> Any:
    task = task_of(FAMILY, {**ROW, **changed})
    environment = FAMILY.make(options(reward))
    reset = await environment.reset(task, seed=0)
    return reset, await environment.step(response)


async def test_the_function_gets_what_trl_would_give_it_and_its_number_is_the_score() -> None:
    _, right = await play("score", "4")
    _, wrong = await play("score", "5")
    assert (right.score, wrong.score, right.done) == (1.0, 0.0, True)
    assert right.success is None, "only a threshold defines a success"
    calls = plugins.load("my_rewards:CALLS", "reward")
    assert calls[0] == (["2 + 2?"], ["4"], ["4"], {"level": [1]})
    _, few = await play("few", "four")
    assert few.score == 4.0  # it takes no columns, and gets none


async def test_messages_are_shown_and_graded_as_messages() -> None:
    reset, result = await play("chat", "Hi!", prompt=CHAT)
    assert (reset.system, reset.observation.text) == ("Be brief.", "Hello")
    assert result.score == 3.0


@pytest.mark.parametrize("reward", ["nothing", "many", "endless", "raises"])
async def test_a_function_that_answers_no_number_measures_nothing(reward: str) -> None:
    with pytest.raises(EnvError, match=f"my_rewards:{reward}: .*(number|word)"):
        await play(reward, "x")


async def test_an_error_of_a_function_has_its_file_and_line() -> None:
    line = MODULE.splitlines().index('def raises(completions): raise KeyError("no such word")') + 1
    with pytest.raises(EnvError, match=rf"no such word' \(.*my_rewards\.py:{line}\); expected"):
        await play("raises", "x")
    with pytest.raises(EnvError) as caught:  # raised by ours, of what it answered
        await play("many", "x")
    assert ".py:" not in caught.value.detail


@pytest.mark.parametrize(
    ("reward", "changed", "sentence"),
    [
        ("score", {"columns": {"level": 1}}, "a required argument: 'answer'.*of the row .level"),
        ("no_such", {}, "no attribute 'no_such'"),
        ("CALLS", {}, "not a callable"),
        ("score", {"prompt": []}, "messages of none"),
        ("score", {"prompt": [*CHAT, *CHAT]}, "expected text, or a message of the user"),
        ("score", {"prompt": " "}, "some text in it"),
        ("score", {"colour": 1}, "field colour: unknown"),
    ],
)
def test_a_row_that_cannot_be_graded_or_asked_is_refused_when_its_pool_is_made(
    empty_store: Path, tmp_path: Path, reward: str, changed: Params, sentence: str
) -> None:
    database = open_database(f"sqlite:///{shutil.copy(empty_store, tmp_path)}")
    head = PoolRequest(name="p", environment="prompts", options=options(reward))
    rows = (("tasks[0]", {"params": {**ROW, **changed}}),)
    with pytest.raises(InputError, match=sentence) as caught:
        PoolMaker(database, lambda _: FAMILY).create(head, rows)
    database.close()
    assert all(problem.startswith("tasks[0]: ") for problem in caught.value.problems)
    assert caught.value.problems or reward != "score"


def test_every_line_of_a_file_is_checked_whether_it_is_drawn_or_not(
    empty_store: Path, tmp_path: Path
) -> None:
    database = open_database(f"sqlite:///{shutil.copy(empty_store, tmp_path)}")
    maker, file = PoolMaker(database, lambda _: FAMILY), tmp_path / "rows.jsonl"
    spec = GenerateSpec(count=1, options={"data": str(file)})
    head = PoolRequest(name="p", environment="prompts", options=options("score"), generate=spec)
    good = ['{"prompt": "a", "answer": "b"}'] * 20

    def refused(*lines: str) -> tuple[str, ...]:
        file.write_text("\n".join([*good, *lines]))
        with pytest.raises(InputError) as caught:
            maker.create(head, ())
        assert caught.value.detail.count(str(file)) == 1
        assert caught.value.problems[0] in caught.value.detail
        return caught.value.problems

    lines = ("", '{"prompt": " "}', "{bad", '{"prompt": 3}', '{"answer": 1}')
    first, second, third, fourth = refused(*lines)
    assert first.startswith("line 22: ")
    assert "some text in it" in first
    assert second.startswith("line 23: no JSON")
    assert third.startswith("line 24: ")
    assert "field prompt" in third
    assert fourth.startswith("line 25: expected an object")
    file.write_text('{"prompt": "a", "level": 1}')
    with pytest.raises(InputError, match="'answer'"):
        maker.create(head, ())
    file.write_text("\n".join(good), encoding="utf-8-sig")  # as some editors save
    assert maker.create(head, ())[0].tasks["train"] == {"active": 1}
    database.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    lines = (json.dumps({"prompt": f"{n} + 0?", "answer": str(n)}) for n in range(6_000))
    file.write_text("\n".join(lines))
    return file


async def test_a_file_of_rows_makes_a_pool_and_each_row_is_in_it_once(data: Path) -> None:
    rows: Params = {"data": str(data)}
    require(await check_environment(FAMILY, options=options("score"), generator_options=rows))
    with CheckedTasks() as checked:
        generate(FAMILY, GenerateSpec(count=5_900, heldout=100, options=rows), checked)
        assert len({draft.instruction for _, draft in checked}) == 6_000
    with pytest.raises(InputError, match=r"asked for 6001 tasks .*has 6000 rows"):
        FAMILY.generate(count=6_001, seed=0, options=rows)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        FAMILY.generate(count=1, seed=0, options={"data": str(tmp_path / "rows.jsonl")})


def test_where_modules_are_listed_no_file_of_the_services_machine_is_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIFORGE_PLUGINS", "my_rewards")
    plugins.here.cache_clear()
    try:
        with pytest.raises(InputError, match="upload the tasks"):
            FAMILY.generate(count=1, seed=0, options={"data": str(data)})
    finally:
        plugins.here.cache_clear()
