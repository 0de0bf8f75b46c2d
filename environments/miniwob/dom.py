"""The elements of a page as a flat list and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

_CLICKABLE: Final = (
    "button",
    "a",
    "span",
    "label",
    "svg",
    "circle",
    "rect",
    "polygon",
    "li",
    "td",
    "h3",
)
_FIELDS: Final = (
    "input_text",
    "input_password",
    "input_search",
    "input_number",
    "input_date",
    "textarea",
)
_TICKS: Final = ("input_checkbox", "input_radio")


@dataclass(frozen=True, slots=True)
class Node:
    """An element: `ref` is its number (0 or less for bare text), `box` is left, top, width, height in pixels."""

    ref: int
    tag: str
    text: str
    ident: str
    classes: str
    value: str
    focused: bool
    leaf: bool
    box: tuple[float, float, float, float]

    @property
    def centre(self) -> tuple[int, int]:
        """The pixel in its middle."""
        left, top, width, height = self.box
        return int(left + width / 2), int(top + height / 2)

    @property
    def is_field(self) -> bool:
        """Whether one can type into it."""
        return self.tag in _FIELDS

    @property
    def shown(self) -> bool:
        """Whether a list of what is on the page has it."""
        interactive = self.is_field or self.tag in _TICKS or self.tag == "button"
        return interactive or (self.leaf and bool(self.text or self.tag in _CLICKABLE))

    def line(self) -> str:
        """`[4] button "Cancel"`, text without a number when it cannot be clicked."""
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
    """All elements, each before its children, the page's body left out."""
    return tuple(_walk(root))[1:]


def listing(nodes: tuple[Node, ...]) -> str:
    """What is on the page, one line an element."""
    return "\n".join(node.line() for node in nodes if node.shown)


def _walk(node: Mapping[str, JsonValue]) -> Iterator[Node]:
    children = node.get("children")
    below = [c for c in children if isinstance(c, dict)] if isinstance(children, list) else []
    value = node.get("value")
    yield Node(
        ref=int(_number(node.get("ref"))),
        tag=str(node.get("tag", "")).lower(),
        text=" ".join(str(node.get("text", "")).split()),
        ident=str(node.get("id", "")),
        classes=str(node.get("classes", "")),
        value=str(value).lower() if isinstance(value, bool) else str(value or ""),
        focused=bool(node.get("focused")),
        leaf=not below,
        box=(
            _number(node.get("left")),
            _number(node.get("top")),
            _number(node.get("width")),
            _number(node.get("height")),
        ),
    )
    for child in below:
        yield from _walk(child)


def _number(value: JsonValue) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
