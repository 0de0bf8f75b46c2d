"""The text by which pools keep tasks in one split: ids, seeds, answers, case and white space are no part of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triforge.environments.kit import same_words
from triforge.environments.registry import load
from triforge.environments.tasks import asks_of
from triforge.rollout.protocols import TaskDraft
from triforge.types import Params

CODE: Params = {
    "question": "Print the sum of two numbers.",
    "tests": [{"input": "1 2\n", "output": "3\n"}],
    "public": 1,
}
MCP: Params = {
    "server": "bank",
    "instruction": "Pay 3 to Ann.",
    "check": {"tool": "balance"},
    "expected": 3,
}
HARBOR: Params = {
    "name": "sum-1",
    "files": {"task.toml": "", "tests/test.sh": "exit 0", "environment/data.txt": "1 2"},
}
VERIFIERS: Params = {
    "env": {"taskset": {"id": "sums"}},
    "data": {"idx": 1, "prompt": [{"role": "user", "content": "1 + 2?"}], "answer": "3"},
}


@pytest.mark.parametrize(
    ("family", "params", "same", "other"),
    [
        (
            "code",
            CODE,
            {"question": "print  the SUM\nof two numbers.", "public": 0, "reference": "print(3)"},
            {"question": "Print the product of two numbers."},
        ),
        (
            "mcp",
            MCP,
            {"instruction": " pay 3 to  ann.", "expected": 4, "horizon": 5},
            {"setup": [{"tool": "open"}]},
        ),
        (
            "harbor",
            HARBOR,
            {"name": "sum-2", "files": HARBOR["files"] | {"tests/test.sh": "exit 1"}},
            {"files": HARBOR["files"] | {"environment/data.txt": "1 3"}},
        ),
        (
            "verifiers",
            VERIFIERS,
            {"data": {"idx": 2, "prompt": "1 +\n2?", "answer": "three"}},
            {"data": {"idx": 1, "prompt": "1 + 3?", "answer": "3"}},
        ),
        ("puzzles", {"seed": 1}, {"seed": 2}, {}),
        ("sokoban", {"board": "#@$.#"}, {}, {"board": "# @$.#"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_family_of_texts_asks_is_its_question_and_of_others_all_parameters(
    family: str, params: Params, same: Params, other: Params
) -> None:
    asks: Callable[[TaskDraft], Any] = asks_of(load(family), {})

    def asked(changes: Params, instruction: str = "Do it.") -> Any:
        return asks(TaskDraft(params={**params, **changes}, instruction=instruction))

    assert asked(same) == asked({})
    assert asked(other) != asked({}) if other else asked({}, "Do that.") != asked({})


@pytest.mark.parametrize("other", ["a\u200bb", "\ufeffab", "a\u00adb", "A\u2060B"])
def test_invisible_characters_make_no_other_question(other: str) -> None:
    assert same_words(other) == same_words("ab")


def test_accents_on_folded_letters_make_no_other_question() -> None:
    assert same_words("\u0390") == same_words("\u03aa\u0301")
