"""A call as a JSON object: its name, and its arguments as an object or as the text of one."""

from __future__ import annotations

import re
from typing import Any, Final

from services.policy.api.calls.reply import Written
from triforge.json_text import written, written_at

_SPACE: Final = re.compile(r"\s*")


def read_calls(text: str, start: int) -> tuple[list[Written], int]:
    """Return the call, or the list of calls, in the JSON that begins at a place, and its end.

    Raises:
        ValueError: it is no JSON that every encoder takes, or no call.
    """
    value, end = written_at(text, start)
    return [_call(item) for item in (value if isinstance(value, list) else [value])], end


def arguments_of(value: Any) -> dict[str, Any]:
    """Return the arguments of a call; ValueError unless they are an object, the text of one, or nothing."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        value = written(value)
    if not isinstance(value, dict):
        raise ValueError(f"the arguments are a {type(value).__name__}, expected an object")
    return value


def _call(value: Any) -> Written:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("expected a call: an object with a name")
    return value["name"], arguments_of(value.get("arguments", value.get("parameters", {})))


def behind_space(text: str, start: int) -> int:
    """Return the place of the next character that is no white space."""
    match = _SPACE.match(text, start)
    return match.end() if match else start
