"""Faults of parameters are named by field, with the given value or the known ones."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import model_validator

from triforge.environments.kit import Family, Strict, parse_model
from triforge.errors import InputError


class Inner(Strict):
    b: int


class GeneratorOptions(Strict):
    size: int = 1
    inner: Inner | None = None

    @model_validator(mode="after")
    def _fits(self) -> GeneratorOptions:
        if self.size > 9:
            raise ValueError("size must be below 10")
        return self


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"colour": 1}, "options: field colour: unknown, known are inner, size"),
        ({"size": 10}, "options: field (all): size must be below 10 (given {'size': 10})"),
        ({"inner": {}}, "options: field inner.b: Field required (given {})"),
        ({"inner": {"b": 1, "c": 2}}, "options: field inner.c: Extra inputs are not permitted (given 2)"),
        ({"size": "x" * 99}, f"options: field size: Input should be a valid integer (given '{'x' * 56}...)"),
    ],
)  # fmt: skip
def test_a_bad_field_is_one_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_model(GeneratorOptions, given, "options")  # type: ignore[arg-type]
    assert caught.value.detail == sentence
    assert caught.value.problems == (sentence.removeprefix("options: "),)


class Walk(Strict):
    start: tuple[int, int]


class Walking(Family[Walk, Strict]):
    """Tasks of a tuple, which JSON does not have."""

    name, params = "walk", Walk

    def instruction(self, given: Walk) -> str:
        return f"Start at {given.start}."


@pytest.mark.parametrize("start", [(1, 2), [1, 2]])
def test_a_tuple_is_read_from_json_and_from_a_generator_and_stored_as_a_list(start: Any) -> None:
    draft = Walking().validate({"start": start})
    assert (draft.params, draft.instruction) == ({"start": [1, 2]}, "Start at (1, 2).")
    assert Walking().read(draft.params) == Walk(start=(1, 2))


def test_parameters_that_are_no_json_are_refused() -> None:
    with pytest.raises(InputError, match=r"walk params: expected JSON: .*set"):
        Walking().validate({"start": {1, 2}})  # type: ignore[dict-item]


def test_of_many_wrong_fields_a_hundred_are_named() -> None:
    with pytest.raises(InputError) as caught:
        parse_model(GeneratorOptions, {f"x{n}": 1 for n in range(101)}, "options")
    assert len(caught.value.problems) == 100
