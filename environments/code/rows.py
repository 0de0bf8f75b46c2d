"""Rows of other data sets, one JSON object a problem, converted to our parameters.

Three shapes are known by their fields; the statement stands under any of `STATEMENTS`:

    test_input, test_output, test_time_limit, test_method   lists of texts, as RLAnything prepares CodeContests
    public_tests, private_tests, generated_tests            {"input": [...], "output": [...]}, as in CodeContests
    public_test_cases, private_test_cases                   lists of {"input", "output", "testtype"} or the same as JSON
                                                            text, as in LiveCodeBench and LiveBench

Tests that call a function instead of using standard input are refused, and so are tests packed as a pickle. A row with more than
`MOST` tests needs a field `keep`: `"keep": 200` takes the first tests, public ones before hidden ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from triforge.errors import InputError
from triforge.json_text import loads
from triforge.types import Params

STATEMENTS: Final = ("question", "question_content", "description", "problem")
_MARKS: Final = (
    "test_input", "public_tests", "private_tests", "public_test_cases", "private_test_cases",
)  # fmt: skip
_PYTHON3: Final = 3  # in CodeContests' list of languages
_PUBLIC: Final = ("public_tests", "public_test_cases")
_HIDDEN: Final = ("private_tests", "generated_tests", "private_test_cases")
MOST: Final = 200  # tests of a task; CodeContests has rows with more


def is_foreign(row: Mapping[str, object]) -> bool:
    """Return whether a row has one of the known shapes."""
    return "tests" not in row and any(name in row for name in _MARKS)


def own_shape(row: Mapping[str, object]) -> Params:
    """Convert a foreign row to our parameters; other fields are left out."""
    statement = next((row[name] for name in STATEMENTS if isinstance(row.get(name), str)), None)
    if statement is None:
        turns = row.get("turns")  # LiveBench keeps its question there
        statement = turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(statement, str):
        raise InputError(
            f"code row: no statement; expected one of {', '.join(STATEMENTS)} or turns"
        )
    method = row.get("test_method", "stdio")
    if method != "stdio":
        raise InputError(f"code row: field test_method: given {method!r}, expected stdio")
    public = [test for name in _PUBLIC for test in _tests(row, name)]
    hidden = [test for name in _HIDDEN for test in _tests(row, name)]
    if "test_input" in row:
        given = {"input": row["test_input"], "output": row.get("test_output")}
        hidden += _columns(given, "test_input, test_output")
    kept = _kept(row, len(public) + len(hidden))
    made: dict[str, object] = {
        "question": statement,
        "tests": (public + hidden)[:kept],
        "public": min(len(public), kept),
        "reference": _solution(row),
    }
    limit = _seconds(row.get("test_time_limit", row.get("time_limit")))
    if limit is not None:
        made["time_limit_s"] = limit
    return cast(Params, made)


def _kept(row: Mapping[str, object], tests: int) -> int:
    keep = row.get("keep", tests)
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        if tests:
            raise InputError(
                f"code row: field keep: given {keep!r}, expected a whole number from 1 to {MOST}"
            )
        return 0
    if min(keep, tests) > MOST:
        raise InputError(
            f"code row: {tests} tests, at most {MOST} are run; to keep the first {MOST} (public ones first) add "
            f"""\"keep\": {MOST} to the row: jq -c '. + {{keep: {MOST}}}' rows.jsonl"""
        )
    return keep


def _tests(row: Mapping[str, object], name: str) -> list[dict[str, str]]:
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = loads(value) if value else []
        except ValueError:
            raise InputError(
                f"code row: field {name}: not JSON; packed tests must be unpacked to a list of input and output first"
            ) from None
    if value is None:
        return []
    if isinstance(value, Mapping):
        return _columns(value, name)
    if not isinstance(value, list) or not all(isinstance(test, Mapping) for test in value):
        raise InputError(f"code row: field {name}: expected a list of tests")
    kinds = {str(test.get("testtype", "stdin")) for test in value}
    if kinds - {"stdin"}:
        raise InputError(
            f"code row: field {name}: given tests of type {sorted(kinds)}, expected stdin"
        )
    return [_test(test.get("input"), test.get("output"), name) for test in value]


def _columns(value: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    inputs, outputs = value.get("input"), value.get("output")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise InputError(f"code row: field {name}: expected as many inputs as outputs, both lists")
    return [_test(*pair, name) for pair in zip(inputs, outputs, strict=True)]


def _test(stdin: object, output: object, name: str) -> dict[str, str]:
    if not isinstance(stdin, str) or not isinstance(output, str):
        raise InputError(f"code row: field {name}: input and output of a test must be text")
    return {"input": stdin, "output": output}


def _solution(row: Mapping[str, Any]) -> str:
    """Return the field `reference`, or the first Python 3 solution of a CodeContests row."""
    if isinstance(row.get("reference"), str):
        return str(row["reference"])
    solutions = row.get("solutions")
    if not isinstance(solutions, Mapping):
        return ""
    pairs = zip(solutions.get("language", ()), solutions.get("solution", ()), strict=False)
    return next((str(text) for language, text in pairs if language == _PYTHON3), "")


def _seconds(value: object) -> float | None:
    """Return a time limit in seconds, given as a number or as CodeContests' {"seconds", "nanos"}, brought into our range."""
    if isinstance(value, Mapping):
        value = float(value.get("seconds", 0)) + float(value.get("nanos", 0)) / 1e9
    if isinstance(value, int | float) and value > 0:
        return min(60.0, max(0.1, float(value)))
    return None
