"""The formats of Hermes and Qwen, Llama 3, Mistral, and GLM-4.5."""

# ruff: noqa: ARG002, D102 - documented in Format and BetweenText
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from services.policy.api.calls.format import BetweenText
from services.policy.api.calls.json_calls import arguments_of, behind_space, read_calls
from services.policy.api.calls.reply import Tools, Written
from triforge.json_text import written, written_at

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class Hermes(BetweenText):
    """`<tool_call>{"name": "look", "arguments": {...}}</tool_call>`, also without the end in front of another call."""

    opening = _OPEN

    def shows(self, call: str) -> bool:
        return _OPEN in call

    def calls(self, text: str, start: int, tools: Tools) -> tuple[Sequence[Written], int]:
        calls, end = read_calls(text, behind_space(text, start))
        return calls, _closed(text, end)


class Llama(BetweenText):
    """`{"name": "look", "parameters": {...}}` and nothing else, or behind `<|python_tag|>`; `;` or a line's end parts several."""

    opening, bare = "<|python_tag|>", True
    _next: Final = re.compile(r"\s*+(?:;\s*+|(?=\{))")

    def shows(self, call: str) -> bool:
        return re.search(r'\{"name": ?"look_up", ?"parameters": ?\{', call) is not None

    def calls(self, text: str, start: int, tools: Tools) -> tuple[Sequence[Written], int]:
        found, end = read_calls(text, behind_space(text, start))
        while place := self._next.match(text, end):
            more, end = read_calls(text, place.end())
            found += more
        return found, end


class Mistral(BetweenText):
    """`[TOOL_CALLS][{"name": "look", "arguments": {...}}]`, or `[TOOL_CALLS]look[ARGS]{...}` for each call."""

    opening = "[TOOL_CALLS]"
    _named: Final = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*(?=\{)")

    def shows(self, call: str) -> bool:
        return self.opening in call

    def calls(self, text: str, start: int, tools: Tools) -> tuple[Sequence[Written], int]:
        named = self._named.match(text, start)
        if named is None:
            return read_calls(text, behind_space(text, start))
        value, end = written_at(text, named.end())
        return [(named[1], arguments_of(value))], end


class Glm(BetweenText):
    """`<tool_call>look`, a pair of `<arg_key>at</arg_key>` and `<arg_value>fridge</arg_value>` for each argument, the end."""

    opening = _OPEN
    _name: Final = re.compile(r"\s*([^\s<>]+)\s*")
    # neither goes on behind another begin, so that a text is read in linear time
    _pair: Final = re.compile(
        r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>((?:(?!<arg_value>).)*?)</arg_value>",
        re.DOTALL,
    )

    def shows(self, call: str) -> bool:
        return "<arg_key>" in call

    def calls(self, text: str, start: int, tools: Tools) -> tuple[Sequence[Written], int]:
        name = self._name.match(text, start)
        if name is None:
            raise ValueError("expected the name of a tool")
        fields: dict[str, Any] = {}
        end = name.end()
        while pair := self._pair.match(text, end):
            field, end = pair[1].strip(), pair.end()
            if field in fields:
                raise ValueError(f"{field[:60]}: given twice")
            fields[field] = _value(pair[2], tools.get(name[1], {}), field)
        return [(name[1], fields)], _closed(text, end)


def _value(text: str, schema: Any, field: str) -> Any:
    """Return the value of an argument: text as it stands where the tool takes text, else JSON where it is JSON."""
    properties = schema.get("properties")
    described = properties.get(field) if isinstance(properties, dict) else None
    if isinstance(described, dict) and described.get("type") == "string":
        return text
    try:
        return written(text)
    except ValueError:
        return text


def _closed(text: str, end: int) -> int:
    """Return the place behind a call's end, which is missing where the model ends or calls again."""
    place = behind_space(text, end)
    if text.startswith(_CLOSE, place):
        return place + len(_CLOSE)
    if place == len(text) or text.startswith(_OPEN, place):
        return place
    raise ValueError(f"expected {_CLOSE}")
