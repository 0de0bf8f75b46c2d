"""A MiniWoB page in a browser: start a problem, look at it, act on it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from environments.gui.actions import Action, pixels
from environments.gui.keys import web_key
from environments.miniwob.dom import Node, read_dom
from environments.miniwob.webdriver import Browser, ScriptError
from triforge.errors import EnvError

WIDTH: Final = 160
HEIGHT: Final = 210
_NOT_PAGES: Final = frozenset({"index"})

# The page's own clock would end an episode after ten seconds; a model may think longer than that. Our limit is counted
# in steps. Animations and the blinking caret make two screenshots of one state differ, so they are switched off.
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
  const said = core.getUtterance();
  done({over: WOB_DONE_GLOBAL, raw: +WOB_RAW_REWARD_GLOBAL,
        said: typeof said === 'string' ? said : said.utterance, dom: core.getDOMInfo()});
}
let left = 2;
function frame() { --left ? requestAnimationFrame(frame) : setTimeout(look, 0); }
requestAnimationFrame(frame);
"""
_CLICK: Final = """
const [ref, done] = arguments;
core.getDOMInfo();
const found = core.previousDOMInfo[ref] !== undefined;
if (found) core.elementClick(ref);
done(found);
"""
_WAIT: Final = "const [ms, done] = arguments; setTimeout(() => done(true), ms);"

_BUTTONS: Final = {"left_click": 0, "double_click": 0, "middle_click": 1, "right_click": 2}


@dataclass(frozen=True, slots=True)
class Look:
    """What a page shows: whether its problem is over and for what raw reward, its sentence, its elements."""

    over: bool
    raw: float
    said: str
    nodes: tuple[Node, ...]


def pages() -> tuple[str, ...]:
    """The names of all tasks in the wheel."""
    return tuple(sorted({path.stem for path in html_folder().glob("*.html")} - _NOT_PAGES))


def html_folder() -> Path:
    """Where the pages lie."""
    spec = find_spec("miniwob")  # found, not imported: it would bring Selenium and gymnasium along
    assert spec is not None, "it is installed"
    assert spec.submodule_search_locations, "it is a package"
    return Path(spec.submodule_search_locations[0]) / "html" / "miniwob"


class Page:
    """One problem of one task.

    Args:
        browser: ours alone until the episode ends.
        name: of the task, as the file is called.
        seed: of the problem.
    """

    def __init__(self, browser: Browser, name: str, seed: int) -> None:
        self._browser = browser
        browser.navigate((html_folder() / f"{name}.html").as_uri())
        browser.run(_START, seed)

    def look(self) -> Look:
        """What the page shows now, after two frames."""
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
            said=str(value["said"]),
            nodes=read_dom(dom),
        )

    def screenshot(self, scale: int) -> bytes:
        """The task's area as a PNG file."""
        return self._browser.screenshot(WIDTH, HEIGHT, scale)

    def act(self, action: Action, nodes: tuple[Node, ...]) -> bool:
        """Perform an action; False when it points at an element that is not there.

        Args:
            action: anything but `terminate`.
            nodes: the elements as last looked at.
        """
        try:
            return self._act(action, nodes)
        except (
            ScriptError
        ):  # the page's own handler raised; the page lives on, as it would for a person
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


__all__ = ["HEIGHT", "WIDTH", "Look", "Page", "html_folder", "pages"]
