"""Foreign rows become our tasks; a malformed row is refused with its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from environments.code.family import CodeFamily
from environments.code.params import ProgramParams, read_params
from environments.code.rows import MOST
from triforge.errors import InputError

FAMILY = CodeFamily()
PAIR = [{"input": "1\n", "output": "2\n"}, {"input": "5\n", "output": "6\n"}]
COLUMNS = {"input": ["1\n", "5\n"], "output": ["2\n", "6\n"]}
RLANYTHING = {
    "question": "Add one.", "test_input": ["1\n", "5\n"], "test_output": ["2\n", "6\n"],
    "test_time_limit": 4, "test_method": "stdio", "task_id": 7,
}  # fmt: skip
CODE_CONTESTS = {
    "name": "1_A", "description": "Add one.", "public_tests": {"input": ["1\n"], "output": ["2\n"]},
    "private_tests": {"input": ["5\n"], "output": ["6\n"]}, "generated_tests": {"input": [], "output": []},
    "time_limit": {"seconds": 2, "nanos": 500_000_000}, "difficulty": 1,
    "solutions": {"language": [2, 3, 3], "solution": ["int main", "print(int(input()) + 1)", "x"]},
}  # fmt: skip
LIVE_CODE_BENCH = {
    "question_title": "One", "question_content": "Add one.", "platform": "atcoder", "starter_code": "",
    "public_test_cases": json.dumps([{**PAIR[0], "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{**PAIR[1], "testtype": "stdin"}]),
}  # fmt: skip
LIVE_BENCH = {
    "question_id": "a", "category": "coding", "turns": ["Add one."],
    "public_test_cases": json.dumps(PAIR[:1]), "private_test_cases": json.dumps(PAIR[1:]),
}  # fmt: skip


def read(row: dict[str, Any]) -> ProgramParams:
    found = read_params(row)
    assert isinstance(found, ProgramParams)
    return found


@pytest.mark.parametrize(
    ("row", "public"),
    [(RLANYTHING, 0), (CODE_CONTESTS, 1), (LIVE_CODE_BENCH, 1), (LIVE_BENCH, 1)],
    ids=["rlanything", "code_contests", "live_code_bench", "live_bench"],
)
def test_a_row_of_a_known_shape_becomes_a_task(row: dict[str, Any], public: int) -> None:
    task = read(row)
    assert task.question == "Add one."
    assert [test.model_dump() for test in task.tests] == PAIR
    assert task.public == public
    again = read(task.model_dump(mode="json"))
    assert again == task


def test_time_limits_and_solutions_come_along() -> None:
    assert read(RLANYTHING).time_limit_s == 4.0
    contest = read(CODE_CONTESTS)
    assert (contest.time_limit_s, contest.reference) == (2.5, "print(int(input()) + 1)")
    assert read({**RLANYTHING, "test_time_limit": 1e6}).time_limit_s == 60.0
    assert read({**RLANYTHING, "reference": "pass"}).reference == "pass"


def test_a_row_with_very_many_tests_is_refused_without_the_field_keep() -> None:
    many = {"input": [str(i) for i in range(999)], "output": ["1"] * 999}
    row = {"description": "x", "public_tests": COLUMNS, "private_tests": many}
    with pytest.raises(
        InputError, match=r"1001 tests, at most 200 are run.*jq -c '\. \+ {keep: 200}'"
    ):
        read(row)
    task = read({**row, "keep": MOST})
    assert (len(task.tests), task.public) == (MOST, 2)
    assert read({**row, "keep": 1}).public == 1
    assert len(read({**RLANYTHING, "keep": MOST}).tests) == 2
    with pytest.raises(InputError, match="field keep"):
        read({**row, "keep": "all"})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"question": None}, "no statement"),
        ({"test_method": "function"}, "field test_method"),
        ({"test_output": ["2\n"]}, "as many inputs as outputs"),
        ({"test_output": None}, "as many inputs as outputs"),
        ({"test_input": [1, 5]}, "must be text"),
        ({"test_input": [], "test_output": []}, "field tests"),
        ({"public_test_cases": "eJw3NDE"}, "packed tests must be unpacked"),
        (
            {"public_test_cases": [{**PAIR[0], "testtype": "functional"}]},
            "field public_test_cases: .*functional",
        ),
        ({"public_test_cases": [1]}, "expected a list of tests"),
    ],
)
def test_a_malformed_row_is_refused_with_its_field(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate({**RLANYTHING, **change})


OWN: dict[str, Any] = {"question": "Add one.", "tests": PAIR, "public": 1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tests": []}, "field tests"),
        ({"tests": [{"input": "1"}]}, r"field tests.0.output"),
        ({"public": 3}, "field public"),
        ({"time_limit_s": 0.0}, "field time_limit_s"),
        ({"memory_mib": 1}, "field memory_mib"),
        ({"question": ""}, "field question"),
        ({"question": "\ud800"}, "field question"),
        ({"hint": "x"}, "field hint"),
        ({"recipe": {"kind": "numbers", "steps": ["even"], "final": "sum", "seed": 1}}, "field recipe: the task"),
        ({"recipe": {"kind": "numbers", "steps": ["evn"], "final": "sum", "seed": 1}}, "numbers has no 'evn'; steps are even, "),
        ({"recipe": {"kind": "numbers", "steps": ["even"], "final": "total", "seed": 1}}, "has no 'total'"),
        ({"recipe": {"kind": "numbers", "steps": ["add:1", "add:2"], "final": "sum", "seed": 1}}, "a step is named twice"),
        ({"recipe": {"kind": "numbers", "steps": ["reverse"], "final": "sum", "seed": 1}}, "makes no difference"),
    ],
)  # fmt: skip
def test_a_malformed_task_is_refused_with_its_field(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FAMILY.validate({**OWN, **change})


def test_generated_tasks_cannot_be_changed_under_their_recipe() -> None:
    made = FAMILY.generate(count=1, seed=1, options={"proved": False})[0]
    tests: Any = made["tests"]
    changed: Any = [{**tests[0], "output": "0"}, *tests[1:]]
    with pytest.raises(InputError, match="field recipe"):
        FAMILY.validate({**made, "tests": changed})
    assert (
        FAMILY.validate({**made, "tests": changed, "recipe": None, "reference": ""}).kind
        == "program"
    )
