"""Evaluators in OSWorld's shape: functions over a result and an expected value, joined by "and" or "or".

    {"func": "exact_match", "result": {"type": ...}, "expected": {"type": "rule", "rules": {"expected": "7"}}}

`func`, `result` and `expected` may be lists of equal length, with `conj` between them. The family reads the values of `result` and
`expected` (`Getter`); a missing file is None and never matches. Each function returns 0.0 or 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from pydantic import Field, JsonValue, model_validator

from triforge.environments.kit import Strict

Spec = dict[str, JsonValue]
Getter = Callable[[Mapping[str, JsonValue]], JsonValue]
Metric = Callable[[JsonValue, JsonValue], float]


class Evaluator(Strict):
    """The verifier of a task. `infeasible` succeeds exactly when the agent gives the task up."""

    func: str | list[str]
    conj: Literal["and", "or"] = "and"
    result: Spec | list[Spec] = Field(default_factory=dict)
    expected: Spec | list[Spec] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_and_of_one_length(self) -> Evaluator:
        unknown = sorted(set(self.funcs) - {*METRICS, INFEASIBLE})
        if unknown:
            raise ValueError(
                f"func: {', '.join(unknown)} is not supported, known are {', '.join([*METRICS, INFEASIBLE])}"
            )
        for name, given in (("result", self.result), ("expected", self.expected)):
            if isinstance(given, list) and len(given) != len(self.funcs):
                raise ValueError(f"{name}: {len(given)} entries for {len(self.funcs)} functions")
        if INFEASIBLE in self.funcs and len(self.funcs) > 1:
            raise ValueError("func: infeasible stands alone")
        return self

    @property
    def funcs(self) -> list[str]:
        return self.func if isinstance(self.func, list) else [self.func]

    @property
    def infeasible(self) -> bool:
        """Whether the task cannot be done, so that giving it up is right."""
        return self.funcs == [INFEASIBLE]

    def score(self, get: Getter) -> float:
        """Return 0.0 or 1.0."""
        if self.infeasible:
            return 0.0
        scores = (
            METRICS[func](get(self._nth(self.result, i)), get(self._nth(self.expected, i)))
            for i, func in enumerate(self.funcs)
        )
        join = all if self.conj == "and" else any
        return float(join(score == 1.0 for score in scores))

    @staticmethod
    def _nth(given: Spec | list[Spec], index: int) -> Spec:
        return given[index] if isinstance(given, list) else given


def _exact_match(result: JsonValue, expected: JsonValue) -> float:
    """Compare with `expected` of the rules; text without the line feed at its end."""
    wanted = expected.get("expected") if isinstance(expected, dict) else expected
    return float(result is not None and _plain(result) == _plain(wanted))


def _check_include_exclude(result: JsonValue, rules: JsonValue) -> float:
    """Find all of `include` and nothing of `exclude` in a text."""
    if not isinstance(result, str) or not isinstance(rules, dict):
        return 0.0
    include, exclude = _texts(rules.get("include")), _texts(rules.get("exclude"))
    if not include and not exclude:  # empty rules would pass everything
        return 0.0
    return float(all(t in result for t in include) and not any(t in result for t in exclude))


def _compare_text_file(result: JsonValue, expected: JsonValue) -> float:
    """Compare the lines of two files; blanks at the ends of lines and empty lines at the end do not count."""
    if not isinstance(result, str) or not isinstance(expected, str):
        return 0.0
    return float(_lines(result) == _lines(expected))


def _is_in_list(result: JsonValue, rules: JsonValue) -> float:
    """Find `expected` of the rules in a list."""
    wanted = rules.get("expected") if isinstance(rules, dict) else rules
    return float(isinstance(result, list) and wanted in result)


def _check_direct_json_object(result: JsonValue, rules: JsonValue) -> float:
    """Compare the fields of an object with `expected` of the rules; further fields do not matter."""
    wanted = rules.get("expected") if isinstance(rules, dict) else None
    if not isinstance(result, dict) or not isinstance(wanted, dict) or not wanted:
        return 0.0
    return float(all(result.get(name) == value for name, value in wanted.items()))


def _file_contains(result: JsonValue, rules: JsonValue) -> float:
    """Find each of the texts in `expected` of the rules in a text."""
    wanted = _texts(rules.get("expected")) if isinstance(rules, dict) else []
    return float(isinstance(result, str) and bool(wanted) and all(t in result for t in wanted))


INFEASIBLE: Final = "infeasible"
METRICS: Final[dict[str, Metric]] = {
    "exact_match": _exact_match,
    "check_include_exclude": _check_include_exclude,
    "compare_text_file": _compare_text_file,
    "file_contains": _file_contains,
    "literal_match": _exact_match,
    "is_in_list": _is_in_list,
    "check_direct_json_object": _check_direct_json_object,
}


def _plain(value: JsonValue) -> JsonValue:
    return value.rstrip("\n") if isinstance(value, str) else value


def _texts(value: JsonValue) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
