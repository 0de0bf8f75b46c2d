"""The names of keys: what a model may write, and what a browser, an X server and pyautogui call them."""

from __future__ import annotations

from typing import Final

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
    "return": "enter",
    "esc": "escape",
    "control": "ctrl",
    "option": "alt",
    "super": "meta",
    "win": "meta",
    "cmd": "meta",
    "command": "meta",
    "del": "delete",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
    "page_up": "pageup",
    "page_down": "pagedown",
}
MAX_KEYS: Final = 4


def read_keys(given: object) -> tuple[str, ...] | None:
    """Keys pressed together, as `["ctrl", "c"]` or `"ctrl+c"`, under our names; None when one is unknown."""
    if isinstance(given, str):
        given = given.split("+") if len(given) > 1 else [given]
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_KEYS:
        return None
    keys = [_key(name) for name in given]
    return tuple(key for key in keys if key) if all(keys) else None


def _key(name: object) -> str:
    if not isinstance(name, str):
        return ""
    if len(name) == 1:
        return "space" if name == " " else name if name.isprintable() and name.isascii() else ""
    low = name.strip().lower()
    low = ALIASES.get(low, low)
    return low if low in NAMES else ""


def web_key(key: str) -> str:
    """A key as WebDriver's actions take it."""
    return NAMES[key][0] if key in NAMES else key


def x_key(key: str) -> str:
    """A key as xdotool takes it."""
    return NAMES[key][1] if key in NAMES else f"U{ord(key):04X}"


def pyautogui_key(key: str) -> str:
    """A key as pyautogui takes it."""
    return NAMES[key][2] if key in NAMES else key


__all__ = ["pyautogui_key", "read_keys", "web_key", "x_key"]
