"""Rows of a pool: JSONL is read line by line, JSON whole, and errors name their place."""

from __future__ import annotations

import io
import json

import pytest

from triforge.environments.rows import (
    MAX_JSON,
    MAX_ROW,
    Unreadable,
    object_in,
    read_json,
    read_lines,
)
from triforge.environments.tasks import request_of
from triforge.errors import InputError


def test_a_json_body_is_its_head_and_its_tasks() -> None:
    body = {"name": "p", "tasks": [{"params": {}}, 3], "environment": "household"}
    head, tasks = read_json(io.BytesIO(json.dumps(body).encode("utf-8-sig")))
    assert head == {"name": "p", "environment": "household"}
    assert list(tasks) == [("tasks[0]", {"params": {}}), ("tasks[1]", 3)]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "body: not JSON"),
        (b"nonsense", "body: not JSON: Expecting value (character 0)"),
        (b"[1]", "body: given list, expected a JSON object"),
        (b'"text"', "body: given str"),
        (b'{"a": 1', "Expecting ',' delimiter (character 7)"),
        (b'{"a": 1,}', "not JSON"),
        (b'{"a": 1} x', "Extra data (character 9)"),
        (b'{"a": 1, "a": 2}', "a: given twice"),
        (b'{"tasks": [{"b": 1, "b": 2}]}', "b: given twice"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b'{"a": "\xff"}', "no UTF-8"),
        (b'{"tasks": 3}', "tasks: given int, expected a list"),
        (b'{"tasks": [' + b"[" * 100_000, "nested too deeply"),
        (
            b'{"a": "' + b"x" * 2**11 + b'"}',
            "more than 1024 bytes of JSON; send large pools as JSONL",
        ),
    ],
)
def test_a_malformed_body_is_refused_with_its_place(body: bytes, detail: str) -> None:
    with pytest.raises(InputError) as caught:
        read_json(io.BytesIO(body), max_json=2**10 if b"xx" in body else MAX_JSON)
    assert detail in caught.value.detail


def test_lines_are_read_with_their_numbers_and_the_bad_ones_with_their_reasons() -> None:
    body = b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{oops\nNaN\n"\xff"\n' + b"[" * 100_000 + b"\n[2]"
    rows = dict(read_lines(io.BytesIO(body)))
    assert rows["line 1"] == {"a": 1}
    assert rows["line 8"] == [2]
    reasons = {label: row.reason for label, row in rows.items() if isinstance(row, Unreadable)}
    assert list(reasons) == ["line 4", "line 5", "line 6", "line 7"]
    assert all(reason.startswith("not JSON: ") for reason in reasons.values())


def test_a_line_that_is_too_long_is_named_and_passed_over() -> None:
    body = b'"short"\n"' + b"x" * 35 + b'"\n7\n"' + b"y" * 50
    assert list(read_lines(io.BytesIO(body), max_row=10)) == [
        ("line 1", "short"),
        ("line 2", Unreadable("longer than 10 bytes")),
        ("line 3", 7),
        ("line 4", Unreadable("longer than 10 bytes")),
    ]


def test_a_task_in_json_is_no_longer_than_a_line_and_so_is_the_rest_of_the_body() -> None:
    long = {"options": {"x": "y" * MAX_ROW}}
    with pytest.raises(
        InputError, match="row: given 1048596 bytes of JSON, expected at most 1048576"
    ):
        object_in(long)
    with pytest.raises(InputError, match="body without tasks: given"):
        request_of({"name": "a", "environment": "household", **long})
