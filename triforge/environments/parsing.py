"""Parameters and options of a family, read from JSON: every bad field named in one sentence."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from triforge.errors import InputError
from triforge.types import Params

ModelT = TypeVar("ModelT", bound=BaseModel)
_SHOWN = 60  # characters of a bad value


class Strict(BaseModel):
    """Base of the models that describe tasks and options: frozen, nothing unknown, nothing coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def parse_model(model: type[ModelT], value: Params, what: str) -> ModelT:
    """Read a JSON object as `model`.

    Args:
        model: a pydantic model.
        value: what was given.
        what: what it is called in the sentence, such as "household params".

    Raises:
        InputError: names every field that is unknown, missing or out of its limits.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = tuple(_sentence(item, sorted(model.model_fields)) for item in error.errors())
        raise InputError(f"{what}: {'; '.join(problems)}", problems=problems) from None


def _sentence(item: ErrorDetails, known: list[str]) -> str:
    place = item["loc"]
    if item["type"] == "extra_forbidden" and len(place) == 1:
        return f"field {place[0]}: unknown, known are {', '.join(known)}"
    shown = repr(item.get("input"))
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    said = item["msg"].removeprefix("Value error, ")
    return f"field {'.'.join(map(str, place)) or '(all)'}: {said} (given {shown})"
