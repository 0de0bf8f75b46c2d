"""Actions at a screen: their keys, their points, and the two formats in which a model writes them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from triforge.json_text import written_at

# our name -> (WebDriver code point, X keysym, pyautogui name)
NAMES: Final[dict[str, tuple[str, str, str]]] = {
    "enter": ("\ue007", "Return", "enter"),
    "tab": ("\ue004", "Tab", "tab"),
    "escape": ("\ue00c", "Escape", "esc"),
    "backspace": ("\ue003", "BackSpace", "backspace"),
    "delete": ("\ue017", "Delete", "delete"),
    "space": (" ", "space", "space"),
    "up": ("\ue013", "Up", "up"),
    "down": ("\ue015", "Down", "down"),
    "left": ("\ue012", "Left", "left"),
    "right": ("\ue014", "Right", "right"),
    "home": ("\ue011", "Home", "home"),
    "end": ("\ue010", "End", "end"),
    "pageup": ("\ue00e", "Prior", "pageup"),
    "pagedown": ("\ue00f", "Next", "pagedown"),
    "ctrl": ("\ue009", "Control_L", "ctrl"),
    "alt": ("\ue00a", "Alt_L", "alt"),
    "shift": ("\ue008", "Shift_L", "shift"),
    "meta": ("\ue03d", "Super_L", "win"),
    **{f"f{n}": (chr(0xE030 + n), f"F{n}", f"f{n}") for n in range(1, 13)},
}
ALIASES: Final[dict[str, str]] = {
    "return": "enter", "esc": "escape", "control": "ctrl", "option": "alt", "super": "meta",
    "win": "meta", "cmd": "meta", "command": "meta", "del": "delete", "arrowup": "up",
    "arrowdown": "down", "arrowleft": "left", "arrowright": "right", "page_up": "pageup",
    "page_down": "pagedown",
}  # fmt: skip
MAX_KEYS: Final = 4


def read_keys(given: object) -> tuple[str, ...] | None:
    """Read keys pressed together, as `["ctrl", "c"]` or `"ctrl+c"`, under our names; None when one is unknown."""
    if isinstance(given, str):
        given = given.split("+") if len(given) > 1 else [given]
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_KEYS:
        return None
    keys = [_key_name(name) for name in given]
    return tuple(key for key in keys if key) if all(keys) else None


def _key_name(name: object) -> str:
    if not isinstance(name, str):
        return ""
    if len(name) == 1:
        return "space" if name == " " else name if name.isprintable() and name.isascii() else ""
    low = name.strip().lower()
    low = ALIASES.get(low, low)
    return low if low in NAMES else ""


def web_key(key: str) -> str:
    """Return a key as WebDriver's actions take it."""
    return NAMES[key][0] if key in NAMES else key


def x_key(key: str) -> str:
    """Return a key as xdotool takes it."""
    return NAMES[key][1] if key in NAMES else f"U{ord(key):04X}"


def pyautogui_key(key: str) -> str:
    """Return a key as pyautogui takes it."""
    return NAMES[key][2] if key in NAMES else key


GRID: Final = 1000
MAX_TEXT: Final = 500  # characters that one `type` may write
MAX_SCROLL: Final = 5000
MAX_WAIT_S: Final = 10.0

Kind = Literal[
    "key", "type", "mouse_move", "left_click", "right_click", "middle_click", "double_click",
    "left_click_drag", "scroll", "wait", "terminate",
]  # fmt: skip
Reason = Literal[
    "no_call", "several_calls", "bad_json", "wrong_tool", "unknown_action", "missing_argument",
    "bad_argument",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """One action. `at` is a point of the grid (0 to 999), `ref` an element's number; a click has one of the two.

    `amount` is in pixels, upwards positive; `seconds` belongs to `wait`, `success` to `terminate`.
    """

    kind: Kind
    at: tuple[int, int] | None = None
    ref: int | None = None
    text: str = ""
    keys: tuple[str, ...] = ()
    amount: int = 0
    seconds: float = 0.0
    success: bool = False

    def __str__(self) -> str:
        words: dict[Kind, str] = {
            "key": "+".join(self.keys),
            "type": json.dumps(self.text, ensure_ascii=False),
            "scroll": str(self.amount),
            "wait": f"{self.seconds:g}",
            "terminate": "success" if self.success else "failure",
        }
        where = f"[{self.ref}]" if self.ref is not None else ""
        if self.at is not None:
            where = f"({self.at[0]}, {self.at[1]})"
        return " ".join(word for word in (self.kind, where, words.get(self.kind, "")) if word)


class MalformedError(Exception):
    """A response that is no action: why, as a word to count and a sentence to show."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def pixels(at: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """Return the pixel of a point of the grid: 0 is the first pixel, 999 the last one."""
    return round(at[0] * (width - 1) / (GRID - 1)), round(at[1] * (height - 1) / (GRID - 1))


def read_computer_use(response: str) -> Action:
    """Read a response in the computer-use format; text before the last `</think>` does not count."""
    return _action(_arguments(response.rpartition("</think>")[2]))


def read_command(response: str) -> Action:
    """Read a response that is one short command; text before the last `</think>` does not count."""
    return _action(_spelled_out(response.rpartition("</think>")[2].strip()))


def read_written(text: str) -> Action:
    """Read an action as `str(action)` writes it, such as `left_click [4]`."""
    match = _WRITTEN.fullmatch(text)
    kind, ref, x, y, value = match.groups() if match else ("",) * 5
    arguments: dict[str, object] = {"action": kind}
    if ref:
        arguments["ref"] = int(ref)
    if x:
        arguments["coordinate"] = [int(x), int(y)]
    if value and kind in _VALUES:
        name, read = _VALUES[kind]
        with contextlib.suppress(ValueError, RecursionError):
            arguments[name] = read(value)
    action = _action(arguments)
    if str(action) != text:
        raise MalformedError("bad_argument", f"{_shown(text)} is no action, expected {action}")
    return action


def call(action: str, **arguments: object) -> str:
    """Return a whole response in the computer-use format."""
    body = json.dumps(
        {"name": "computer_use", "arguments": {"action": action, **arguments}}, ensure_ascii=False
    )
    return f"Action: {action.replace('_', ' ')}.\n<tool_call>\n{body}\n</tool_call>"


_WRITTEN: Final = re.compile(
    r"(?s)(\w{1,20})(?: \[(\d{1,7})\]| \((\d{1,3}), (\d{1,3})\))?(?: (.+))?"
)
_VALUES: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "key": ("keys", str),
    "type": ("text", json.loads),
    "scroll": ("pixels", int),
    "wait": ("time", float),
    "terminate": ("status", str),
}


# ---- from text to arguments -----------------------------------------------------------------------------------------


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _arguments(text: str) -> Mapping[str, object]:
    calls = []
    start = text.find(_OPEN)
    while start >= 0:
        behind = start + len(_OPEN)
        try:
            body, end = written_at(text, behind + len(text[behind:]) - len(text[behind:].lstrip()))
        except ValueError:
            body, end = None, behind
        close = text.find(_CLOSE, end)
        if close < 0:
            break
        calls.append(body if not text[end:close].strip() else None)
        start = text.find(_OPEN, close)
    if not calls:
        raise MalformedError("no_call", "the response has no <tool_call> ... </tool_call>")
    if len(calls) > 1:
        raise MalformedError("several_calls", f"one call a turn, the response has {len(calls)}")
    (body,) = calls
    if body is None:
        raise MalformedError("bad_json", "the call is not JSON")
    if not isinstance(body, dict) or body.get("name") != "computer_use":
        raise MalformedError("wrong_tool", 'the call must have the name "computer_use"')
    arguments = body.get("arguments")
    if not isinstance(arguments, dict):
        raise MalformedError("bad_json", "the call's arguments must be a JSON object")
    return arguments


_COMMANDS: Final[tuple[tuple[str, Callable[[re.Match[str]], dict[str, object]]], ...]] = (
    (r"click (\d{1,6})", lambda m: {"action": "left_click", "ref": int(m[1])}),
    (r"click (\d{1,4}) (\d{1,4})", lambda m: {"action": "left_click", "coordinate": [int(m[1]), int(m[2])]}),
    (r"(?s)type (\d{1,6}) (.+)", lambda m: {"action": "type", "ref": int(m[1]), "text": m[2]}),
    (r"run (.+)", lambda m: {"action": "type", "text": f"{m[1]}\n"}),
    (r"press (\S+)", lambda m: {"action": "key", "keys": [*m[1].split("+")]}),
    (r"scroll (-?\d{1,4})", lambda m: {"action": "scroll", "pixels": int(m[1])}),
    (r"wait", lambda _: {"action": "wait", "time": 1}),
    (r"done", lambda _: {"action": "terminate", "status": "success"}),
    (r"fail", lambda _: {"action": "terminate", "status": "failure"}),
)  # fmt: skip


def _spelled_out(command: str) -> Mapping[str, object]:
    for pattern, arguments in _COMMANDS:
        if match := re.fullmatch(pattern, command):
            return arguments(match)
    raise MalformedError("unknown_action", f"{_shown(command)} is not a command")


# ---- from arguments to an action ------------------------------------------------------------------------------------


_CLICKS: Final[tuple[Kind, ...]] = ("left_click", "right_click", "middle_click", "double_click")
_POINTED: Final[dict[str, Kind]] = {
    kind: kind for kind in (*_CLICKS, "mouse_move", "left_click_drag")
}


def _action(arguments: Mapping[str, object]) -> Action:
    name = arguments.get("action")
    kind = _POINTED.get(name) if isinstance(name, str) else None
    if kind is not None:
        if kind in _CLICKS and "ref" in arguments and "coordinate" not in arguments:
            return Action(kind, ref=_whole(arguments, "ref", 0, 10**6))
        return Action(kind, at=_point(arguments))
    read = _READERS.get(name) if isinstance(name, str) else None
    if read is None:
        raise MalformedError("unknown_action", f"there is no action {_shown(name)}")
    return read(arguments)


def _key(arguments: Mapping[str, object]) -> Action:
    keys = read_keys(_given(arguments, "keys"))
    if keys is None:
        raise MalformedError("bad_argument", f"keys: unknown {_shown(arguments['keys'])}")
    return Action("key", keys=keys)


def _type(arguments: Mapping[str, object]) -> Action:
    text = _given(arguments, "text")
    if not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT or not _writable(text):
        raise MalformedError("bad_argument", f"text: 1 to {MAX_TEXT} writable characters")
    ref = _whole(arguments, "ref", 0, 10**6) if "ref" in arguments else None
    return Action("type", ref=ref, text=text)


def _scroll(arguments: Mapping[str, object]) -> Action:
    at = _point(arguments) if "coordinate" in arguments else None
    return Action("scroll", at=at, amount=_whole(arguments, "pixels", -MAX_SCROLL, MAX_SCROLL))


def _wait(arguments: Mapping[str, object]) -> Action:
    seconds = _given(arguments, "time")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise MalformedError("bad_argument", f"time: a number of seconds, given {_shown(seconds)}")
    if not 0 <= seconds <= MAX_WAIT_S:  # also refuses what is not a number
        raise MalformedError("bad_argument", f"time: 0 to {MAX_WAIT_S:g} seconds")
    return Action("wait", seconds=float(seconds))


def _terminate(arguments: Mapping[str, object]) -> Action:
    status = _given(arguments, "status")
    if status not in ("success", "failure"):
        raise MalformedError("bad_argument", f"status: success or failure, given {_shown(status)}")
    return Action("terminate", success=status == "success")


_READERS: Final[dict[str, Callable[[Mapping[str, object]], Action]]] = {
    "key": _key,
    "type": _type,
    "scroll": _scroll,
    "wait": _wait,
    "terminate": _terminate,
}


def _given(arguments: Mapping[str, object], name: str) -> object:
    if name not in arguments:
        raise MalformedError("missing_argument", f"the argument {name!r} is missing")
    return arguments[name]


def _whole(arguments: Mapping[str, object], name: str, low: int, high: int) -> int:
    value = _number(_given(arguments, name))
    if value is None or not low <= value <= high:
        raise MalformedError("bad_argument", f"{name}: a whole number from {low} to {high}")
    return value


def _point(arguments: Mapping[str, object]) -> tuple[int, int]:
    point = _given(arguments, "coordinate")
    if isinstance(point, list) and len(point) == 2:
        x, y = map(_number, point)
        if x is not None and y is not None and 0 <= x < GRID and 0 <= y < GRID:
            return x, y
    raise MalformedError("bad_argument", f"coordinate: [x, y], each from 0 to {GRID - 1}")


def _number(value: object) -> int | None:
    """Return a whole number; 500.0 is one, True is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _writable(text: str) -> bool:
    """Return whether every character can be typed: no control characters except line feed and tab, no lone surrogates."""
    return all(c in "\n\t" or (c.isprintable() and not "\ud800" <= c <= "\udfff") for c in text)


def _shown(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
