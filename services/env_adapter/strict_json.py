"""JSON from people and models, read so that every reader would find the same in it."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError, with a sentence for a person, if it is none.

    NaN and infinities are no JSON; of a field given twice, readers would take different values; half of a surrogate pair
    is no text.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
        if isinstance(text, bytes) or not text.isascii() or "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON: no UTF-8: {error.reason}") from None
    except UnicodeEncodeError:
        raise ValueError("not JSON: a text in it holds half a character") from None
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
