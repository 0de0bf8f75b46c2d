"""JSON from people and models: parsed alike by every reader, and safe to store and to show.

JSON can spell halves of characters, which no database, tokenizer or response can hold, and parsers of JSON stop at different
depths of about 200 levels. What a model writes is read by `written`, wherever it becomes JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from triforge.errors import InputError, TooLargeError

_DEEPEST: Final = 64  # levels of a stored value; messages and responses add a few
# Strings, lists and objects of a body; each takes up to 300 bytes when it is parsed.
MOST_PARTS: Final = 100_000
SMALL: Final = (
    65_536  # bytes that cannot hold too many parts, and that are checked and parsed at once
)
_WINDOW: Final = 1 << 20  # bytes that are searched in one call: it stops all threads of the process
# The rest of a string of JSON, up to its end or that of the window; no byte is visited twice.
_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# An escaped surrogate without its other half, or a backslash followed by text of that form.
_HALVES: Final = (
    re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"),
    re.compile(rb"(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"),
)


def require_whole(body: bytes) -> None:
    """Raise InputError unless a body is UTF-8 without halves of characters. Its JSON is not parsed."""
    if not body.isascii() or b"\0" in body:
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"body: no UTF-8: {error.reason} at byte {error.start}") from None
        if b"\0" in body:  # UTF-16 and UTF-32 have many
            raise InputError("body: no JSON in UTF-8: it holds a byte 0")
    if any(_found(halves, body) for halves in _HALVES):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return  # the parser of the route reports it
        _require_whole_value(value, "body")


def _found(halves: re.Pattern[bytes], body: bytes) -> bool:
    """Return whether half a character occurs in a body; the next escape may be behind a window's end."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return False
    for start in range(0, len(body), _WINDOW):
        end = start + _WINDOW
        match = halves.search(body, start, end + 12)
        if match is not None and match.start() < end:
            return True
    return False


def require_parsable(body: bytes | bytearray, *, parts: int = MOST_PARTS, numbers: int = 0) -> None:
    """Accept JSON that is parsed in bounded memory: so many strings, lists and objects, and so many numbers.

    Raises:
        TooLargeError: 20 MB of brackets would be gigabytes of objects.
    """
    if len(body) <= SMALL:
        return
    brackets, commas = body.count(b"[") + body.count(b"{"), body.count(b",")
    count = brackets + (body.count(b'"') + 1) // 2
    if count > parts or commas > parts + numbers:  # those inside of strings do not count
        count, commas = _outside(body, parts)
    if count > parts or commas > parts + numbers:
        raise TooLargeError(
            f"body: more than {parts} strings, lists and objects{f' and {numbers} numbers' if numbers else ''}, this "
            "route's limit; send less at a time"
        )


def _outside(body: bytes | bytearray, most: int) -> tuple[int, int]:
    """Return the strings, lists and objects of a body, and the commas between them; `most` strings are looked at."""
    count = commas = end = 0
    while count <= most:
        start = body.find(b'"', end)
        bare = len(body) if start < 0 else start
        count += body.count(b"[", end, bare) + body.count(b"{", end, bare)
        commas += body.count(b",", end, bare)
        if start < 0:
            break
        count, end = count + 1, start + 1
        ended = False
        while not ended:
            match = _REST.match(body, end, end + _WINDOW)
            assert match is not None  # it may be empty
            ended = match.end() == end or body[match.end() : match.end() + 1] in (b'"', b"")
            end = match.end()
        end += 1
    return count, commas


def require_keepable(value: Any, where: str, *, most: int | None = None) -> None:
    """Raise InputError for a JSON value that is nested too deeply, has half a character, or has more than `most` bytes."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        if not level:
            break
        level = [inner for outer in level for inner in _inside(outer)]
    else:
        raise InputError(f"{where}: nested deeper than {_DEEPEST} levels")
    size = _require_whole_value(value, where)
    if most is not None and size > most:
        raise InputError(f"{where}: given {size} bytes of JSON, expected at most {most}")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _require_whole_value(value: Any, where: str) -> int:
    """Return the bytes of a JSON value."""
    try:
        return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InputError(f"{where}: holds half a character, {half} without its other half, which is no text") from None  # fmt: skip


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text; ValueError with a sentence for a person if it is invalid.

    NaN, infinities and numbers that no float holds (`1e999`) are refused. A field that occurs twice is refused: parsers would take different values.
    """
    try:
        return json.loads(
            text,
            parse_float=partial(_finite, float),
            parse_int=partial(_finite, int),
            parse_constant=_no_constant,
            object_pairs_hook=_once,
        )
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON: no UTF-8: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (character {error.pos})") from None


def written(text: str) -> Any:
    """Return the value of JSON that a model has written, alone in its text; see `written_at`."""
    value, end = written_at(text, len(text) - len(text.lstrip()))
    if text[end:].strip():
        raise ValueError(f"not JSON: it goes on behind its end (character {end})")
    return value


def written_at(text: str, start: int) -> tuple[Any, int]:
    """Return the value of the JSON that begins at a place in a model's text, and its end.

    Raises:
        ValueError: it is no JSON that every encoder takes: it has a half of a character, a number that is not finite, a field
            twice, or too many levels. A raw line break in a string is accepted, which models write.
    """
    try:
        value, end = _WRITTEN.raw_decode(text, start)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (character {error.pos})") from None
    require_keepable(value, "JSON")
    return value, end


def _finite(kind: type[int] | type[float], text: str) -> int | float:
    with contextlib.suppress(ValueError, OverflowError):  # an integer that no float holds
        value = kind(text)
        if math.isfinite(value):
            return value
    raise ValueError(f"not JSON: {text[:20]} is too large a number")


def _no_constant(name: str) -> None:
    raise ValueError(f"not JSON: {name} is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"{name[:60]}: given twice")
        fields[name] = value
    return fields


_WRITTEN: Final = json.JSONDecoder(
    strict=False,
    parse_float=partial(_finite, float),
    parse_int=partial(_finite, int),
    parse_constant=_no_constant,
    object_pairs_hook=_once,
)
