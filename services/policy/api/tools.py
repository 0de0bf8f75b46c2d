"""Tools in chat: how a model is shown them, and the calls in its text.

The model's own chat template writes tools, calls and results into the prompt. Calls are read in the form of Hermes and Qwen,
`<tool_call>{"name": "...", "arguments": {...}}</tool_call>`; text in another form stays text.
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
    """A tool that the model may call; its other fields reach the template unchanged."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: _Function


class _CalledFunction(BaseModel):
    name: str
    arguments: str = "{}"


class PastCall(BaseModel):
    """A call in an assistant's earlier message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: _CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return it as templates take it: the arguments as an object, not as its text."""
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

    def openai(self) -> dict[str, Any]:
        """Return it as OpenAI's clients take it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """An answer of a model: its text, and the tools that it calls."""

    text: str
    calls: tuple[Call, ...] = ()

    def named(self, name: str) -> ParsedReply:
        """Derive the ids of its calls from a name; without one they are random."""
        if not name or not self.calls:
            return self
        calls = (replace(call, id=f"call_{name}-{i}") for i, call in enumerate(self.calls))
        return replace(self, calls=tuple(calls))

    def finish(self, reason: str) -> str:
        """Return the reason why it ended, given the engine's."""
        return "tool_calls" if self.calls and reason == "stop" else reason


class CallParser:
    """Reads calls of the tools with these `names` out of text; a `forced` answer is one call and nothing else."""

    def __init__(self, names: Sequence[str] = (), *, forced: bool = False) -> None:
        self.names, self._forced = names, forced

    def parse(self, text: str) -> ParsedReply:
        """Read a whole answer."""
        if self._forced:
            call = self._call(text)
            return ParsedReply(text) if call is None else ParsedReply("", (call,))
        parts: list[str] = []
        calls: list[Call] = []
        at = 0
        while self.names and (start := text.find(_OPEN, at)) >= 0:
            end = text.find(_CLOSE, start)
            end = len(text) if end < 0 else end  # a model may end instead of closing
            after = min(end + len(_CLOSE), len(text))
            call = self._call(text[start + len(_OPEN) : end])
            if call is None:
                parts.append(text[at:after])
            else:
                parts.append(text[at:start])
                calls.append(call)
            at = after
        whole = "".join([*parts, text[at:]])
        return ParsedReply(whole.rstrip() if calls else whole, tuple(calls))

    def visible(self, text: str) -> str:
        """Return the part of an unfinished answer that stays text, however the answer goes on."""
        if self._forced:
            return ""
        if not self.names:
            return text
        start = text.find(_OPEN)
        if start < 0:
            held = (size for size in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:size]))
            start = len(text) - next(held, 0)
        return text[:start].rstrip()

    def _call(self, body: str) -> Call | None:
        try:
            content = json.loads(body)
            name, arguments = content["name"], content.get("arguments", {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if name not in self.names or not isinstance(arguments, dict):
            return None
        return Call(name, json.dumps(arguments, ensure_ascii=False))


def call_schema(tools: Sequence[Tool]) -> str:
    """Return the JSON schema of one call of one of these tools."""
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
