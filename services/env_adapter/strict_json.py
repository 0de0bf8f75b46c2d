"""JSON from people and models, read so that every reader would find the same in it."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError, with a sentence for a person, if it is none.

    NaN and infinities are no JSON; of a field given twice, readers would take different values.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON: no UTF-8: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (character {error.pos})") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"not JSON: {name} is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:60]}: given twice")
        found[name] = value
    return found
