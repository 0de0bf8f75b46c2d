"""JSON from people and models: read so that every reader finds the same in it, and what of it can be kept and shown again.

JSON can spell halves of characters, which no database, tokenizer or answer holds, and readers of JSON stop at 200 levels
or so, each at its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from triforge.errors import InputError, TooLargeError

DEEPEST: Final = 64  # levels of what is kept; messages and answers put a few around it
MOST_PARTS: Final = (
    100_000  # strings, lists and objects of a body; each takes up to 300 bytes when it is parsed
)
_FEW: Final = 65_536  # bytes that cannot hold too many
# A string of JSON, or the rest of a text that does not end it; never looks at a byte twice.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
# A surrogate that has no other half beside it, spelled as JSON does, or a backslash and what looks like one behind it.
_HALVES: Final = (
    re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"),
    re.compile(rb"(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"),
)


def require_whole(body: bytes) -> None:
    """Pass JSON in UTF-8 whose every character is whole, else InputError. Whether it is JSON is not looked at."""
    if not body.isascii() or b"\0" in body:
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"body: no UTF-8: {error.reason} at byte {error.start}") from None
        if b"\0" in body:  # UTF-16 and UTF-32 have many
            raise InputError("body: no JSON in UTF-8: it holds a byte 0")
    if any(halves.search(body) for halves in _HALVES):
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return  # whoever reads it says so
        _demand_whole_value(found, "body")


def require_parsable(body: bytes | bytearray, *, parts: int = MOST_PARTS, numbers: int = 0) -> None:
    """Pass JSON that is parsed in bounded memory: at most so many strings, lists and objects, and so many numbers beside them.

    Raises:
        TooLargeError: 20 MB of brackets would be gigabytes of objects.
    """
    if len(body) <= _FEW:
        return
    bare, found = _STRING.subn(b"", body, parts + 1)
    found += bare.count(b"[") + bare.count(b"{")
    if found > parts or bare.count(b",") > parts + numbers:
        raise TooLargeError(
            f"body: more than {parts} strings, lists and objects{f' and {numbers} numbers' if numbers else ''}, which is "
            "what this route takes; send less at a time"
        )


def require_keepable(value: Any, where: str) -> None:
    """Pass a value of JSON that can be kept; InputError for one nested too deeply, or with half a character."""
    level = [value]
    for _ in range(DEEPEST + 1):
        if not level:
            break
        level = [inner for outer in level for inner in _inside(outer)]
    else:
        raise InputError(f"{where}: nested deeper than {DEEPEST} levels")
    _demand_whole_value(value, where)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _demand_whole_value(value: Any, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InputError(f"{where}: holds half a character, {half} without its other half, which is no text") from None  # fmt: skip


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
