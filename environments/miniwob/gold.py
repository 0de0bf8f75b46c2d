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


def _button(nodes: Nodes, text: str | None = None) -> Action:
    return _click(_with(nodes, "button", text))


def _fields(nodes: Nodes) -> list[Node]:
    return [node for node in nodes if node.is_field]


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
    return [*clicks, _button(nodes, "Submit")]


def _enter(text: str, nodes: Nodes) -> list[Action]:
    """Write quoted words into the fields in turn, the last word into all others; then click the button."""
    words = _quoted(text)
    fields = _fields(nodes)
    texts = [words[min(i, len(words) - 1)] for i in range(len(fields))]
    writes = [
        Action("type", ref=field.ref, text=text) for field, text in zip(fields, texts, strict=True)
    ]
    return [*writes, _button(nodes)]


def _focus(text: str, nodes: Nodes) -> list[Action]:
    number = re.findall(r"(\d+)(?:st|nd|rd|th)", text)
    return [_click(_fields(nodes)[int(number[0]) - 1 if number else 0 :])]


SOLVERS: Final[dict[str, Solver]] = {
    "click-test": lambda _, nodes: [_button(nodes)],
    "click-test-2": lambda _, nodes: [_button(nodes, "ONE")],
    "click-button": lambda text, nodes: [_button(nodes, _quoted(text)[0])],
    "click-button-sequence": lambda _, nodes: [_button(nodes, "ONE"), _button(nodes, "TWO")],
    "click-checkboxes": _ticks,
    "click-dialog": lambda _, nodes: [_button(nodes)],
    "click-link": lambda text, nodes: [
        _click(n for n in nodes if n.classes == "alink" and n.text == _quoted(text)[0])
    ],
    "click-option": _ticks,
    "click-tab": lambda text, nodes: [_click(_with(nodes, "a", re.findall(r"Tab #\d+", text)[0]))],
    "enter-password": _enter,
    "enter-text": _enter,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "login-user": _enter,
}
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
