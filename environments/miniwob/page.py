"""A MiniWoB page in a browser: start a problem, look at its elements, act on it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pydantic import Field, JsonValue

from environments.gui.actions import Action, pixels, web_key
from environments.gui.replay import Begun, play
from environments.miniwob.browser import Browser, ScriptError
from triforge.errors import EnvError

_CLICKABLE: Final = (
    "button", "a", "span", "label", "svg", "circle", "rect", "polygon", "li", "td", "h3",
)  # fmt: skip
_FIELDS: Final = (
    "input_text", "input_password", "input_search", "input_number", "input_date", "textarea",
)  # fmt: skip
_TICKS: Final = ("input_checkbox", "input_radio")


@dataclass(frozen=True, slots=True)
class Node:
    """An element: `ref` is its number (0 or less for bare text), `box` is left, top, width, height in pixels."""

    ref: int
    tag: str
    text: str
    value: str
    focused: bool
    leaf: bool
    box: tuple[float, ...]

    @property
    def centre(self) -> tuple[int, int]:
        left, top, width, height = self.box
        return int(left + width / 2), int(top + height / 2)

    @property
    def is_field(self) -> bool:
        return self.tag in _FIELDS

    @property
    def shown(self) -> bool:
        """Whether the listing of the page has it."""
        interactive = self.is_field or self.tag in _TICKS or self.tag == "button"
        return interactive or (self.leaf and bool(self.text or self.tag in _CLICKABLE))

    def line(self) -> str:
        """Return a line such as `[4] button "Cancel"`; bare text has no number."""
        words = [f"[{self.ref}]"] if self.ref > 0 else []
        words.append("text" if self.tag == "t" else self.tag.replace("input_", ""))
        if self.tag in _TICKS:
            words.append("on" if self.value == "true" else "off")
        elif self.is_field or self.text:
            words.append(f'"{self.value if self.is_field else self.text}"')
        if self.focused:
            words.append("focused")
        return " ".join(words)


def read_dom(root: Mapping[str, JsonValue]) -> tuple[Node, ...]:
    """Return all elements, each before its children, without the page's body."""
    return tuple(_walk(root))[1:]


def listing(nodes: tuple[Node, ...]) -> str:
    """Return the page as text, one line an element."""
    return "\n".join(node.line() for node in nodes if node.shown)


def _walk(node: Mapping[str, JsonValue]) -> Iterator[Node]:
    children = node.get("children")
    below = [c for c in children if isinstance(c, dict)] if isinstance(children, list) else []
    value = node.get("value")
    yield Node(
        ref=int(_number(node.get("ref"))),
        tag=str(node.get("tag", "")).lower(),
        text=" ".join(str(node.get("text", "")).split()),
        value=str(value).lower() if isinstance(value, bool) else str(value or ""),
        focused=bool(node.get("focused")),
        leaf=not below,
        box=tuple(_number(node.get(side)) for side in ("left", "top", "width", "height")),
    )
    for child in below:
        yield from _walk(child)


def _number(value: JsonValue) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


WIDTH: Final = 160
HEIGHT: Final = 210
_NOT_PAGES: Final = frozenset({"index"})

_LOADED: Final = "arguments[0](typeof core !== 'undefined' && typeof genProblem === 'function');"
_LOAD_S: Final = 20.0  # under load the driver gives a page back before its scripts are there

# The page's own clock would end an episode after ten seconds, and a model may take longer; the limit here is one of steps.
# Animations and the blinking caret would make two screenshots of one state differ.
_START: Final = """
const [seed, done] = arguments;
const style = document.createElement('style');
style.textContent = '* { caret-color: transparent !important; transition: none !important; animation: none !important; }';
document.head.appendChild(style);
if (window.jQuery) jQuery.fx.off = true;
core.EPISODE_MAX_TIME = 2000000000;
core.setDataMode('train');
Math.seedrandom(seed);
core.startEpisodeReal();
(function ready() { WOB_TASK_READY ? done(true) : setTimeout(ready, 10); })();
"""
_LOOK: Final = """
const done = arguments[0];
function look() {
  if (WOB_DONE_GLOBAL && core.cover_div) core.cover_div.style.display = 'none';
  const text = core.getUtterance();
  done({over: WOB_DONE_GLOBAL, raw: +WOB_RAW_REWARD_GLOBAL,
        utterance: typeof text === 'string' ? text : text.utterance, dom: core.getDOMInfo()});
}
let left = 2;
function frame() { --left ? requestAnimationFrame(frame) : setTimeout(look, 0); }
requestAnimationFrame(frame);
"""
_CLICK: Final = """
const [ref, done] = arguments;
core.getDOMInfo();
const there = core.previousDOMInfo[ref] !== undefined;
if (there) core.elementClick(ref);
done(there);
"""
_WAIT: Final = "const [ms, done] = arguments; setTimeout(() => done(true), ms);"

_BUTTONS: Final = {"left_click": 0, "double_click": 0, "middle_click": 1, "right_click": 2}


MAX_SEED: Final = 2**31 - 1


class Problem(Begun):
    """The parameters of a task; a missing utterance is read from the page."""

    task: str = Field(min_length=1, max_length=64)
    seed: int = Field(ge=0, le=MAX_SEED)
    horizon: int = Field(default=10, ge=1, le=200)
    utterance: str = Field(default="", max_length=4000)


@dataclass(frozen=True, slots=True)
class Look:
    """The state of a page: whether its problem is over, its raw reward, its utterance, its elements."""

    over: bool
    raw: float
    utterance: str
    nodes: tuple[Node, ...]


def pages() -> tuple[str, ...]:
    """Return the names of all tasks in the wheel."""
    return tuple(sorted({path.stem for path in html_folder().glob("*.html")} - _NOT_PAGES))


def html_folder() -> Path:
    """Return the folder of the pages."""
    spec = find_spec("miniwob")  # not imported: it would import Selenium and gymnasium
    assert spec is not None, "it is installed"
    assert spec.submodule_search_locations, "it is a package"
    return Path(spec.submodule_search_locations[0]) / "html" / "miniwob"


class Page:
    """One problem of one task."""

    def __init__(self, browser: Browser, name: str, seed: int) -> None:
        self._browser = browser
        browser.navigate((html_folder() / f"{name}.html").as_uri())
        begun = time.monotonic()
        while not browser.run(_LOADED) and time.monotonic() < begun + _LOAD_S:
            time.sleep(0.02)
        browser.run(_START, seed)

    def look(self) -> Look:
        """Return the state of the page after two frames."""
        value = self._browser.run(_LOOK)
        if value is None:  # a dialog of the page was open and has been accepted
            value = self._browser.run(_LOOK)
        dom = value.get("dom") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(dom, dict):
            raise EnvError(f"the page shows {str(value)[:80]!r}, expected its elements")
        raw = value["raw"]
        return Look(
            over=bool(value["over"]),
            raw=float(raw) if isinstance(raw, int | float) else 0.0,
            utterance=str(value["utterance"]),
            nodes=read_dom(dom),
        )

    def replay(self, problem: Problem) -> Look:
        """Play the actions before the agent's turn; return the state after them."""
        look = self.look()

        def act(action: Action) -> str:
            nonlocal look
            if not self.act(action, look.nodes):
                return f"there is no element {action.ref}"
            look = self.look()
            return "the page is over after it" if look.over else ""

        play(problem, act, "miniwob")
        return look

    def screenshot(self, scale: int) -> bytes:
        return self._browser.screenshot(WIDTH, HEIGHT, scale)

    def act(self, action: Action, nodes: tuple[Node, ...]) -> bool:
        """Perform an action; return False when it names an element that is not there."""
        try:
            return self._act(action, nodes)
        except ScriptError:  # the page's own handler raised; the page goes on
            return True

    def _act(self, action: Action, nodes: tuple[Node, ...]) -> bool:
        at = pixels(action.at, WIDTH, HEIGHT) if action.at is not None else None
        if action.kind == "wait":
            self._browser.run(_WAIT, int(1000 * action.seconds))
        elif action.kind == "key":
            self._press(action.keys)
        elif action.kind == "type":
            if action.ref is not None and not self._browser.run(_CLICK, action.ref):
                return False
            for character in action.text:
                self._press(("enter" if character == "\n" else character,))
        elif action.kind == "scroll":
            x, y = at or (WIDTH // 2, HEIGHT // 2)
            self._wheel(x, y, -action.amount)
        elif action.kind == "left_click" and action.ref is not None:
            return bool(self._browser.run(_CLICK, action.ref))
        else:
            at = at or _centre(action.ref, nodes)
            if at is None:
                return False
            self._point(action, *at)
        return True

    def _point(self, action: Action, x: int, y: int) -> None:
        move: JsonValue = {"type": "pointerMove", "duration": 0, "x": x, "y": y}
        button = _BUTTONS.get(action.kind, 0)
        press: list[JsonValue] = [
            {"type": "pointerDown", "button": button},
            {"type": "pointerUp", "button": button},
        ]
        steps: list[JsonValue] = [move, *press]
        if action.kind == "mouse_move":
            steps = [move]
        elif action.kind == "double_click":
            steps = [move, *press, *press]
        elif action.kind == "left_click_drag":
            glide: JsonValue = {"type": "pointerMove", "duration": 100, "x": x, "y": y}
            steps = [press[0], glide, press[1]]
        self._browser.act([_source("pointer", "mouse", steps)])

    def _wheel(self, x: int, y: int, down: int) -> None:
        scroll: JsonValue = {
            "type": "scroll", "duration": 0, "x": x, "y": y, "deltaX": 0, "deltaY": down,
        }  # fmt: skip
        self._browser.act([_source("wheel", "wheel", [scroll])])

    def _press(self, keys: tuple[str, ...]) -> None:
        down: list[JsonValue] = [{"type": "keyDown", "value": web_key(key)} for key in keys]
        up: list[JsonValue] = [{"type": "keyUp", "value": web_key(key)} for key in reversed(keys)]
        self._browser.act([_source("key", "keyboard", [*down, *up])])


def _source(kind: str, name: str, steps: list[JsonValue]) -> JsonValue:
    source: dict[str, JsonValue] = {"type": kind, "id": name, "actions": steps}
    if kind == "pointer":
        source["parameters"] = {"pointerType": "mouse"}
    return source


def _centre(ref: int | None, nodes: tuple[Node, ...]) -> tuple[int, int] | None:
    for node in nodes:
        if node.ref == ref:
            x, y = node.centre
            return (x, y) if 0 <= x < WIDTH and 0 <= y < HEIGHT else None
    return None
