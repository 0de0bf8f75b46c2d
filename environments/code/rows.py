"""Problems of others, one JSON object a row, as our own parameters.

Three shapes are known by their fields; the statement is found under any of `STATEMENTS`:

    test_input, test_output, test_time_limit, test_method   lists of texts, as RLAnything prepares CodeContests
    public_tests, private_tests, generated_tests            {"input": [...], "output": [...]}, as in CodeContests
    public_test_cases, private_test_cases                   lists of {"input", "output", "testtype"} or the same as JSON
                                                            text, as in LiveCodeBench and LiveBench

Tests that call a function instead of using standard input are refused, and so is what is packed as a pickle. A row with more
than `MOST` tests is refused as well, unless it says itself how many are to be kept: `"keep": 200` takes the first, the
public ones before the hidden ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from triforge.errors import InputError
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
    """Whether a row is of one of the known shapes."""
    return "tests" not in row and any(name in row for name in _MARKS)


def own_shape(row: Mapping[str, object]) -> Params:
    """A foreign row as our parameters; what we have no use for is left out."""
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
        raise InputError(f"code row: field test_method: was {method!r}, only stdio is played")
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
                f"code row: field keep: was {keep!r}, expected a whole number from 1 to {MOST}"
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
            value = json.loads(value) if value else []
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
            f"code row: field {name}: tests of type {sorted(kinds)}, only stdin is played"
        )
    return [_test(test.get("input"), test.get("output"), name) for test in value]


def _columns(value: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    given, wanted = value.get("input"), value.get("output")
    if not isinstance(given, list) or not isinstance(wanted, list) or len(given) != len(wanted):
        raise InputError(f"code row: field {name}: expected as many inputs as outputs, both lists")
    return [_test(a, b, name) for a, b in zip(given, wanted, strict=True)]


def _test(given: object, wanted: object, name: str) -> dict[str, str]:
    if not isinstance(given, str) or not isinstance(wanted, str):
        raise InputError(f"code row: field {name}: input and output of a test must be text")
    return {"input": given, "output": wanted}


def _solution(row: Mapping[str, Any]) -> str:
    """The first Python 3 solution of a CodeContests row, or what stands under `reference`."""
    if isinstance(row.get("reference"), str):
        return str(row["reference"])
    found = row.get("solutions")
    if not isinstance(found, Mapping):
        return ""
    pairs = zip(found.get("language", ()), found.get("solution", ()), strict=False)
    return next((str(text) for language, text in pairs if language == _PYTHON3), "")


def _seconds(value: object) -> float | None:
    """A time limit in seconds: a number, or CodeContests' {"seconds", "nanos"}; brought into our range."""
    if isinstance(value, Mapping):
        value = float(value.get("seconds", 0)) + float(value.get("nanos", 0)) / 1e9
    if isinstance(value, int | float) and value > 0:
        return min(60.0, max(0.1, float(value)))
    return None
