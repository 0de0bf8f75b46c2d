"""Prompts with a reward function: called as TRL calls one, refused where it cannot be, unmeasured where it fails."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from environments.prompts import function
from environments.prompts.family import FAMILY
from environments.prompts.function import Answer, Grader, RewardFunction
from services.env_adapter.pools.creation import PoolMaker
from tests.unit.environments.tasks import task_of
from triforge.environments import plugins
from triforge.environments.tasks import CheckedTasks, check_pool, generate
from triforge.errors import EnvError, InputError
from triforge.store.database import open_database
from triforge.testing.check_environment import check_environment, require
from triforge.types import GenerateSpec, Params, PoolRequest

MODULE = """import asyncio, threading
CALLS = []
def score(prompts, completions, answer, **columns):
    CALLS.append((prompts, completions, answer, columns))
    return [float(text == right) for text, right in zip(completions, answer)]
def few(completions): return [float(len(completions[0]))]
def chat(completions, **_): return [float(len(completions[0][0]["content"]))]
def nothing(completions): return [None]
def many(completions): return [1.0, 2.0]
def endless(completions): return [float("inf")]
def large(completions): return [1e154]
def text(completions): return ["1.0"]
def coded(completions): return b"1"
def word(completions): return "7"
def named(completions): return {1: 0.5}
def number(completions): return 1.0
def raises(completions): raise KeyError("no such word")
SIZES = []
def lengths(completions):
    SIZES.append(len(completions))
    if "bad" in completions: raise KeyError("no such word")
    return [float(len(text)) for text in completions]
async def later(completions):
    await asyncio.sleep(0)
    return (len(text) for text in completions)
TOGETHER = threading.Barrier(3)
def slow(completions):
    TOGETHER.wait(10)
    return [1.0] * len(completions)
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


@pytest.mark.parametrize(
    "reward",
    ["nothing", "many", "endless", "large", "text", "coded", "word", "named", "number", "raises"],
)
async def test_a_function_that_answers_no_number_measures_nothing(reward: str) -> None:
    with pytest.raises(EnvError, match=f"my_rewards:{reward}: .*(number|word)") as caught:
        await play(reward, "x")
    assert caught.value.retryable is (reward == "raises")  # the same number would come again


async def test_an_error_of_a_function_has_its_file_and_line() -> None:
    line = MODULE.splitlines().index('def raises(completions): raise KeyError("no such word")') + 1
    with pytest.raises(EnvError, match=rf"no such word' \(.*my_rewards\.py:{line}\)") as raised:
        await play("raises", "x")
    place = raised.value.raised.rpartition("/")[2]
    assert (raised.value.raised[:12], place) == ("KeyError at ", f"my_rewards.py:{line}")
    with pytest.raises(EnvError) as caught:  # raised by ours, of what it answered
        await play("many", "x")
    assert ".py:" not in caught.value.detail


def graded(reward: str, *texts: str, concurrency: int = 1) -> list[float | BaseException]:
    grader = Grader(RewardFunction.of(f"my_rewards:{reward}", "reward"), concurrency)
    futures = [grader.grade(Answer("2 + 2?", text, {})) for text in texts]
    return [future.exception(10) or future.result() for future in futures]


def test_answers_are_graded_in_one_call_and_an_exception_costs_its_own_answer() -> None:
    answers = [Answer("2 + 2?", text, {}) for text in (*"abcdefg", "bad", "four")]
    found = RewardFunction.of("my_rewards:lengths", "reward").grade(answers)
    assert isinstance(found.pop(7), EnvError)
    assert found == [1.0] * 7 + [4.0]
    sizes = plugins.load("my_rewards:SIZES", "reward")
    assert sizes[0] == 9
    assert sum(size == 1 for size in sizes) <= 3, "only the half that raised is divided"


def test_calls_of_a_slow_function_run_at_the_same_time() -> None:
    assert graded("slow", "a", "b", "c", concurrency=3) == [1.0] * 3


def test_answers_that_come_during_a_call_are_graded_in_the_next_one() -> None:
    grader = Grader(RewardFunction.of("my_rewards:slow", "reward"), 1)
    barrier = plugins.load("my_rewards:TOGETHER", "reward")
    futures = [grader.grade(Answer("?", "first", {}))]
    while not barrier.n_waiting:
        time.sleep(0.001)
    futures += [grader.grade(Answer("?", text, {})) for text in "abc"]
    for _ in range(4):  # two for each call
        threading.Thread(target=barrier.wait, daemon=True).start()
    assert [future.result(10) for future in futures] == [1.0] * 4


def test_functions_may_be_coroutines_and_results_iterators() -> None:
    assert graded("later", "a", "bb") == [1.0, 2.0]


def test_rows_with_other_columns_are_graded_in_a_call_of_their_own() -> None:
    grader = Grader(RewardFunction.of("my_rewards:score", "reward"), 1)
    rows: list[Params] = [{"answer": "a"}, {"answer": "b", "level": 1}, {"answer": "a"}]
    futures = [grader.grade(Answer("?", "a", row)) for row in rows]
    assert [future.result(10) for future in futures] == [1.0, 0.0, 1.0]


def test_a_long_call_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "_SLOW_S", 0.1)
    grader = Grader(RewardFunction.of("my_rewards:slow", "reward"), 1)
    assert grader.activity() == ""
    future = grader.grade(Answer("?", "a", {}))
    barrier = plugins.load("my_rewards:TOGETHER", "reward")
    while not grader.activity():
        time.sleep(0.01)
    assert "grades 1 answers" in grader.activity()
    for _ in range(2):
        threading.Thread(target=barrier.wait, daemon=True).start()
    assert future.result(10) == 1.0


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
    assert second.startswith("line 23: not JSON")
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
    spec = GenerateSpec(count=4_001, heldout=2_000, options=rows)
    with CheckedTasks() as checked, pytest.raises(InputError, match=r"asked for 6001 .* 6000:"):
        generate(FAMILY, spec, checked)
    with CheckedTasks() as checked:
        generate(FAMILY, spec.model_copy(update={"at_most": True}), checked)
        assert (checked.splits, checked.summary) == ({"train": 4_800, "heldout": 1_200}, "")


def test_rows_that_repeat_others_are_reported_and_cost_nothing(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    lines = [json.dumps({"prompt": f"{n % 10}?", "answer": str(n % 12)}) for n in range(80)]
    file.write_text("\n".join(lines))  # 60 different ones, of 10 prompts
    spec = GenerateSpec(count=64, heldout=64, at_most=True, options={"data": str(file)})
    with CheckedTasks() as checked:
        generate(FAMILY, spec, checked, asks=lambda draft: draft.instruction)
        assert checked.splits == {"train": 48, "heldout": 12}
        for reported in ("20 of 80", "60 different", "50 of them"):
            assert reported in checked.summary
    with CheckedTasks() as checked:
        generate(FAMILY, spec.model_copy(update={"count": 40, "heldout": 10}), checked)
        assert checked.summary == "", "as many different ones as asked for"
    exact = spec.model_copy(update={"at_most": False})
    with CheckedTasks() as checked, pytest.raises(InputError, match="20 of 80 tasks repeat"):
        generate(FAMILY, exact, checked)


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


DISGUISES = ["{} + 0 is?", "  {}  +\n0\tis? ", "{} + 0 IS?", "{}\u00a0+\u20030 \uff49s?"]


@pytest.mark.parametrize("identity", [None, "question"])
def test_rows_that_ask_the_same_are_in_one_split_whatever_their_id_case_and_white_space(
    tmp_path: Path, identity: str | None
) -> None:
    file = tmp_path / "data.jsonl"
    rows = [
        {"prompt": "Solve it." if identity else text.format(n), "answer": str(n), "id": f"{n}-{k}", "question": text.format(n)}
        for n in range(40)
        for k, text in enumerate(DISGUISES if n % 4 == 0 else DISGUISES[:1])
    ]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)))
    chosen = options("score") | {"identity": identity}
    spec = GenerateSpec(count=55, heldout=15, options={"data": str(file)})
    head = PoolRequest(name="p", environment="prompts", options=chosen, generate=spec)
    with CheckedTasks() as checked:
        check_pool(FAMILY, head, (), checked)
        splits: dict[str, set[str]] = {}
        for split, draft in checked:
            splits.setdefault(draft.params["columns"]["answer"], set()).add(split)
    assert checked.splits == {"train": 55, "heldout": 15}
    assert all(len(found) == 1 for found in splits.values())


def test_an_identity_that_a_row_does_not_have_is_named() -> None:
    head = PoolRequest(
        name="p", environment="prompts", options=options("score") | {"identity": "uid"}
    )
    rows = [("line 1", {"params": ROW})]
    with (
        CheckedTasks() as checked,
        pytest.raises(InputError, match="line 1: prompts options: field identity: given 'uid'"),
    ):
        check_pool(FAMILY, head, rows, checked)


POINTS = [{"text": "Is polite.", "weight": 2.0}, {"text": "Is short."}]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({}, {}),
        ({"rubric": "Is polite.\n\nIs short.", "reference": "Yes, please."}, {"points": [1.0, 1.0], "reference": "Yes, please."}),
        ({"rubric": POINTS}, {"points": [2.0, 1.0]}),
        ({"rubric": ["Is polite.", POINTS[1]]}, {"points": [1.0, 1.0]}),
        ({"reference": "x" * 20_000, "rubric": None}, {"reference": "x" * 16_000}),
    ],
)  # fmt: skip
def test_a_row_has_a_rubric_and_a_reference_in_its_columns(columns: Params, shown: Params) -> None:
    params = {**ROW, "columns": {**ROW["columns"], **columns}}
    found = FAMILY.criteria(task_of(FAMILY, params), {})
    assert [point.weight for point in found.rubric] == shown.get("points", [])
    assert found.reference == shown.get("reference", "")
    assert {point.text for point in found.rubric} <= {"Is polite.", "Is short."}


@pytest.mark.parametrize(
    "rubric", [3, {"text": "x"}, [{"text": "x", "weight": 0}], [["x"]], ["x"] * 17, ["x" * 1001]]
)
def test_a_rubric_that_cannot_be_read_is_none_of_the_pool(
    empty_store: Path, tmp_path: Path, rubric: Any
) -> None:
    database = open_database(f"sqlite:///{shutil.copy(empty_store, tmp_path)}")
    maker = PoolMaker(database, lambda _: FAMILY)
    head = PoolRequest(name="p", environment="prompts", options=options("score"))
    bad = {**ROW, "prompt": "another", "columns": {**ROW["columns"], "rubric": rubric}}
    good = {**ROW, "columns": {**ROW["columns"], "reference": "Yes."}}
    rows = [(f"tasks[{n}]", {"params": params}) for n, params in enumerate((bad, good))]
    pool, _ = maker.create(head, rows)
    assert (pool.shown, maker.check(pool, {}).shown) == (None, ("reference",))
    database.close()
    with pytest.raises(InputError, match="columns"):
        FAMILY.criteria(task_of(FAMILY, bad), {})
