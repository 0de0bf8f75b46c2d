"""Who knows how some of the tasks are solved: from the sentence and the elements, as a person would read them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Final

from environments.gui.actions import Action
from environments.miniwob.page import Node

Nodes = tuple[Node, ...]
Solver = Callable[[str, Nodes], list[Action]]


def _quoted(said: str) -> list[str]:
    return re.findall(r'"([^"]*)"', said)


def _click(nodes: Iterable[Node]) -> Action:
    for node in nodes:
        return Action("left_click", ref=node.ref)
    raise LookupError("the page has no such element")


def _with(nodes: Nodes, tag: str, text: str | None = None) -> list[Node]:
    return [n for n in nodes if n.tag == tag and (text is None or n.text == text)]


def _fields(nodes: Nodes) -> list[Node]:
    return [node for node in nodes if node.is_field]


def _write(node: Node, text: str) -> Action:
    return Action("type", ref=node.ref, text=text)


def _any_button(_: str, nodes: Nodes) -> list[Action]:
    return [_click(_with(nodes, "button"))]


def _button_one(_: str, nodes: Nodes) -> list[Action]:
    return [_click(_with(nodes, "button", "ONE"))]


def _named_button(said: str, nodes: Nodes) -> list[Action]:
    return [_click(_with(nodes, "button", _quoted(said)[0]))]


def _sequence(_: str, nodes: Nodes) -> list[Action]:
    return [_click(_with(nodes, "button", name)) for name in ("ONE", "TWO")]


def _link(said: str, nodes: Nodes) -> list[Action]:
    links = [n for n in nodes if n.classes == "alink" and n.text == _quoted(said)[0]]
    return [_click(links)]


def _tab(said: str, nodes: Nodes) -> list[Action]:
    name = re.findall(r"Tab #\d+", said)[0]
    return [_click(_with(nodes, "a", name))]


def _ticks(said: str, nodes: Nodes) -> list[Action]:
    """Checkboxes and radio buttons: each stands right before its text."""
    listed = said.removeprefix("Select ").removesuffix(" and click Submit.")
    wanted = set(listed.split(", "))
    pairs = itertools.pairwise(nodes)
    clicks = [
        Action("left_click", ref=box.ref)
        for box, text in pairs
        if box.tag in ("input_checkbox", "input_radio") and text.text in wanted
    ]
    return [*clicks, _click(_with(nodes, "button", "Submit"))]


def _enter(said: str, nodes: Nodes) -> list[Action]:
    """Quoted words into the fields in turn, the last word into all that are left; then the button."""
    words = _quoted(said)
    fields = _fields(nodes)
    texts = [words[min(i, len(words) - 1)] for i in range(len(fields))]
    writes = [_write(field, text) for field, text in zip(fields, texts, strict=True)]
    return [*writes, _click(_with(nodes, "button"))]


def _focus(said: str, nodes: Nodes) -> list[Action]:
    number = re.findall(r"(\d+)(?:st|nd|rd|th)", said)
    return [_click(_fields(nodes)[int(number[0]) - 1 if number else 0 :])]


SOLVERS: Final[dict[str, Solver]] = {
    "click-test": _any_button, "click-test-2": _button_one, "click-button": _named_button,
    "click-button-sequence": _sequence, "click-checkboxes": _ticks, "click-dialog": _any_button,
    "click-link": _link, "click-option": _ticks, "click-tab": _tab, "enter-password": _enter,
    "enter-text": _enter, "focus-text": _focus, "focus-text-2": _focus, "login-user": _enter,
}  # fmt: skip
SOLVED: Final = tuple(SOLVERS)


def solve(task: str, said: str, nodes: Nodes) -> list[Action] | None:
    """The actions that solve a problem, or None when nobody here knows."""
    solver = SOLVERS.get(task)
    if solver is None:
        return None
    try:
        return solver(said, nodes)
    except LookupError:  # the page is not built as expected
        return None
