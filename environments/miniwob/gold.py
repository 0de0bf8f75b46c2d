"""Solvers of some tasks, from the utterance and the elements of the page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Final

from environments.gui.actions import Action
from environments.miniwob.page import Node

Nodes = tuple[Node, ...]
Solver = Callable[[str, Nodes], list[Action]]


def _quoted(text: str) -> list[str]:
    return re.findall(r'"([^"]*)"', text)


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


def _named_button(text: str, nodes: Nodes) -> list[Action]:
    return [_click(_with(nodes, "button", _quoted(text)[0]))]


def _sequence(_: str, nodes: Nodes) -> list[Action]:
    return [_click(_with(nodes, "button", name)) for name in ("ONE", "TWO")]


def _link(text: str, nodes: Nodes) -> list[Action]:
    links = [n for n in nodes if n.classes == "alink" and n.text == _quoted(text)[0]]
    return [_click(links)]


def _tab(text: str, nodes: Nodes) -> list[Action]:
    name = re.findall(r"Tab #\d+", text)[0]
    return [_click(_with(nodes, "a", name))]


def _ticks(text: str, nodes: Nodes) -> list[Action]:
    """Tick checkboxes and radio buttons, each of which stands right before its text."""
    listed = text.removeprefix("Select ").removesuffix(" and click Submit.")
    wanted = set(listed.split(", "))
    pairs = itertools.pairwise(nodes)
    clicks = [
        Action("left_click", ref=box.ref)
        for box, text in pairs
        if box.tag in ("input_checkbox", "input_radio") and text.text in wanted
    ]
    return [*clicks, _click(_with(nodes, "button", "Submit"))]


def _enter(text: str, nodes: Nodes) -> list[Action]:
    """Write quoted words into the fields in turn, the last word into all others; then click the button."""
    words = _quoted(text)
    fields = _fields(nodes)
    texts = [words[min(i, len(words) - 1)] for i in range(len(fields))]
    writes = [_write(field, text) for field, text in zip(fields, texts, strict=True)]
    return [*writes, _click(_with(nodes, "button"))]


def _focus(text: str, nodes: Nodes) -> list[Action]:
    number = re.findall(r"(\d+)(?:st|nd|rd|th)", text)
    return [_click(_fields(nodes)[int(number[0]) - 1 if number else 0 :])]


SOLVERS: Final[dict[str, Solver]] = {
    "click-test": _any_button, "click-test-2": _button_one, "click-button": _named_button,
    "click-button-sequence": _sequence, "click-checkboxes": _ticks, "click-dialog": _any_button,
    "click-link": _link, "click-option": _ticks, "click-tab": _tab, "enter-password": _enter,
    "enter-text": _enter, "focus-text": _focus, "focus-text-2": _focus, "login-user": _enter,
}  # fmt: skip
SOLVED: Final = tuple(SOLVERS)


def solve(task: str, text: str, nodes: Nodes) -> list[Action] | None:
    """Return the actions that solve a problem, or None when no solver does."""
    solver = SOLVERS.get(task)
    if solver is None:
        return None
    try:
        return solver(text, nodes)
    except LookupError:  # the page is not built as expected
        return None
