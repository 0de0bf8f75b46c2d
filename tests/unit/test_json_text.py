"""JSON that models write: a value that every encoder takes, or an error with a sentence."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from services.env_adapter.adaptation.rewriter import Choices
from triforge.json_text import loads, written, written_at

ODD = (
    r'"\ud83d"', r'{"\udc00": 1}', "NaN", "-Infinity", "1e999", "9" * 400, "9" * 5000, "[" * 65 + "]" * 65,
    "[" * 100_000, '{"a": 1, "a": 2}', "", "{", "1 2",
)  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_what_some_encoder_refuses_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|twice"):
        written(text)


def test_a_raw_line_break_in_a_string_and_space_around_are_accepted() -> None:
    assert written(' {"a": "b\nc"}\n') == {"a": "b\nc"}
    assert written_at('x{"a": 1}y', 1) == ({"a": 1}, 9)
    assert written(r'"\ud83d\ude00"') == "😀"


@pytest.mark.parametrize("text", ODD[:-3])
def test_an_odd_answer_of_the_rewriter_is_no_answer(text: str) -> None:
    answer, problem = Choices({}, '{"type": "object"}').parse('{"a": ' + text + "}")
    assert answer is None
    assert problem


PIECES = st.sampled_from([*"{}[]:,\"\\ue0", "d83d", "1e", "NaN", "null", '"a"', "\n", " ", "9" * 30])  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
def test_every_value_can_be_written_again(text: str) -> None:
    value: Any = None
    with contextlib.suppress(ValueError):
        value = written(text)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    to_json(value)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400, "9" * 5000])
def test_a_number_that_no_float_holds_is_refused_in_files_too(number: str) -> None:
    with pytest.raises(ValueError, match="too large a number"):
        loads('{"a": ' + number + "}")
