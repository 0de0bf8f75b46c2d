"""Tools in chat: how a model is shown them, and the calls in what it says. Knows neither the web nor the engines.

The model's own chat template writes tools, calls and results into the prompt. Calls are read in the form of Hermes and Qwen,
`<tool_call>{"name": "...", "arguments": {...}}</tool_call>`; whatever is written in another form stays text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from triforge.errors import InputError

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]


class Tool(BaseModel):
    """A tool that the model may call; its other fields reach the template as they came."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: _Function


class _Called(BaseModel):
    name: str
    arguments: str = "{}"


class PastCall(BaseModel):
    """A call in an assistant's earlier message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: _Called

    def shown(self) -> dict[str, Any]:
        """As templates take it: the arguments as an object and not as its text."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            raise InputError(
                f"tool_calls: the arguments of {self.function.name} are {self.function.arguments!r:.80}, expected JSON"
            ) from None
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model has written; `arguments` is JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def shown(self) -> dict[str, Any]:
        """As clients take it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Said:
    """What a model has said: its text, and the tools it calls."""

    text: str
    calls: tuple[Call, ...] = ()

    def named(self, name: str) -> Said:
        """The same with calls whose ids follow from a name; as it is without one."""
        if not name or not self.calls:
            return self
        calls = (replace(call, id=f"call_{name}-{i}") for i, call in enumerate(self.calls))
        return replace(self, calls=tuple(calls))

    def finish(self, how: str) -> str:
        """Why it ended, given how the engine says that it did."""
        return "tool_calls" if self.calls and how == "stop" else how


def said(text: str, names: Sequence[str]) -> Said:
    """Read the calls of tools with these names out of a whole answer. What is not such a call stays text."""
    parts: list[str] = []
    calls: list[Call] = []
    at = 0
    while names and (start := text.find(_OPEN, at)) >= 0:
        end = text.find(_CLOSE, start)
        end = len(text) if end < 0 else end  # a model may end instead of closing
        after = min(end + len(_CLOSE), len(text))
        call = _call(text[start + len(_OPEN) : end], names)
        if call is None:
            parts.append(text[at:after])
        else:
            parts.append(text[at:start])
            calls.append(call)
        at = after
    whole = "".join([*parts, text[at:]])
    return Said(whole.rstrip() if calls else whole, tuple(calls))


def _call(body: str, names: Sequence[str]) -> Call | None:
    try:
        found = json.loads(body)
        name, arguments = found["name"], found.get("arguments", {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if name not in names or not isinstance(arguments, dict):
        return None
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def forced(text: str, names: Sequence[str]) -> Said:
    """Read an answer that was held to `call_schema`; one that was cut off stays text."""
    call = _call(text, names)
    return Said(text) if call is None else Said("", (call,))


def call_schema(tools: Sequence[Tool]) -> str:
    """The JSON schema of a call of one of these tools, and of nothing beside it."""
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        parameters = dict((tool.function.model_extra or {}).get("parameters") or {"type": "object"})
        for name, schema in parameters.pop("$defs", {}).items():
            if definitions.setdefault(name, schema) != schema:
                raise InputError(f"tools: given two definitions of {name!r} in $defs, expected one")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return json.dumps({"anyOf": calls} | ({"$defs": definitions} if definitions else {}))


def begun(text: str, names: Sequence[str]) -> str:
    """The part of an unfinished answer that is text whatever comes next."""
    if not names:
        return text
    start = text.find(_OPEN)
    if start < 0:
        held = (size for size in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:size]))
        start = len(text) - next(held, 0)
    return text[:start].rstrip()
