"""Rows in files and bodies: tasks of pools, prompts, conversations. Every JSONL file and body is read by `read_lines`.

JSONL is read line by line, so it may be large; JSON is parsed whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from triforge.errors import InputError
from triforge.json_text import loads, require_keepable, require_parsable

JSONL: Final = "application/x-ndjson"
MAX_ROW: Final = 2**20  # bytes of a line of JSONL
MAX_JSON: Final = 2**23  # bytes of a JSON body, which is parsed whole
_NAMED: Final = 20  # bad lines that an error names; the rest is counted
_PARTS: Final = 1_000_000  # strings, lists, objects and numbers in it

T = TypeVar("T")
Row = tuple[str, Any]  # the label of a row ("tasks[3]", "line 4") and its value


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that is not JSON, with the reason; it is reported with the rows that are JSON but no task."""

    reason: str


def object_of(text: str | bytes, what: str) -> dict[str, Any]:
    """Parse the JSON object of `what`, such as an option of a command; raise InputError if it is none."""
    try:
        value = loads(text)
    except ValueError as error:
        raise InputError(f"{what}: {error}; expected a JSON object such as {{}}") from None
    if not isinstance(value, dict):
        raise InputError(f"{what}: given {type(value).__name__}, expected a JSON object")
    return value


def read_params(file: Path) -> list[dict[str, Any]]:
    """Return the parameters in a JSONL file, one task for each line, bare or as `{"params": {...}}`."""
    rows = read_file(file, object_in)
    return [row["params"] if isinstance(row.get("params"), dict) else row for row in rows]


def read_file(file: Path, read: Callable[[Any], T]) -> list[T]:
    """Read the rows of a JSONL file, each by `read`, which raises InputError for a row that it refuses.

    Raises:
        InputError: the file cannot be read, or rows in it; the bad lines are named.
    """
    rows: list[T] = []
    bad: list[str] = []
    lines = 0
    try:
        with file.open("rb") as opened:
            for label, row in read_lines(opened):
                lines += 1
                try:
                    rows.append(read(row))
                except InputError as error:
                    bad.append(f"{label}: {error.detail}")
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    if bad:
        raise InputError(
            f"{file}: {len(bad)} of {lines} lines refused; the first is {bad[0]}",
            problems=tuple(bad[:_NAMED]),
        )
    return rows


def object_in(row: Any) -> dict[str, Any]:
    """Return the JSON object of a row; raise InputError if it is none."""
    if isinstance(row, Unreadable):
        raise InputError(row.reason)
    if not isinstance(row, dict):
        raise InputError(f"given {shown(row)}, expected a JSON object")
    require_keepable(row, "row")
    return row


def shown(value: Any) -> str:
    """Return a value as an error shows it, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_lines(file: IO[bytes], *, max_row: int = MAX_ROW) -> Iterator[Row]:
    """Yield the rows of JSONL, of files and uploads alike.

    A line ends with a line feed. A byte order mark before the first line and empty lines are skipped. A line that is no JSON in
    UTF-8, that holds NaN or a field twice, or that is longer than `max_row` bytes becomes `Unreadable`.
    """
    number = 0
    while line := file.readline(max_row + 1):
        number += 1
        rest = line
        while len(rest) > max_row and not rest.endswith(b"\n"):  # to the end of a line too long
            rest = file.readline(max_row + 1)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield f"line {number}", _parse(line, max_row)


def _parse(line: bytes, max_row: int) -> Any:
    if len(line) > max_row:
        return Unreadable(f"longer than {max_row} bytes")
    try:
        return loads(line)
    except ValueError as error:
        return Unreadable(str(error))


def read_json(file: IO[bytes], *, max_json: int = MAX_JSON) -> tuple[dict[str, Any], Iterable[Row]]:
    """Return a JSON body without its tasks, and its tasks.

    Raises:
        InputError: the body is no JSON object, a field is given twice, or it is too large to be parsed whole.
    """
    text = file.read(max_json + 1)
    if len(text) > max_json:
        raise InputError(
            f"body: more than {max_json} bytes of JSON; send large pools as JSONL ({JSONL}), one task a line"
        )
    require_parsable(text, parts=_PARTS)
    try:
        body = loads(text)
    except ValueError as error:
        raise InputError(f"body: {error}; JSONL needs the content type {JSONL}") from None
    if not isinstance(body, dict):
        raise InputError(f"body: given {type(body).__name__}, expected a JSON object")
    return body, rows_of(body)


def rows_of(body: dict[str, Any]) -> Iterable[Row]:
    """Take the tasks out of a body; raise InputError if they are no list."""
    tasks = body.pop("tasks", [])
    if not isinstance(tasks, list):
        raise InputError(f"tasks: given {type(tasks).__name__}, expected a list")
    return ((f"tasks[{number}]", task) for number, task in enumerate(tasks))
