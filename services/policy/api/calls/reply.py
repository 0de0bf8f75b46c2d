"""An answer of a model as clients take it: text, and calls of tools."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_LENGTH: Final = 9  # of an id; templates of Mistral refuse others


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model has written; `arguments` is JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: _id(secrets.token_hex()))

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
        calls = (replace(call, id=_id(f"{name}-{i}")) for i, call in enumerate(self.calls))
        return replace(self, calls=tuple(calls))

    def finish(self, reason: str) -> str:
        """Return the reason why it ended, given the engine's."""
        return "tool_calls" if self.calls and reason == "stop" else reason


def _id(name: str) -> str:
    number = int.from_bytes(hashlib.sha256(name.encode()).digest())
    letters = []
    for _ in range(_LENGTH):
        number, place = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[place])
    return "".join(letters)


# The offered tools by name, each with its JSON schema.
Tools = Mapping[str, Mapping[str, Any]]
# A call as the model has written it: a name, and the arguments.
Written = tuple[str, Mapping[str, Any]]


def calls_of(written: Sequence[Written], tools: Tools) -> list[Call] | None:
    """Return calls of offered tools; None if one is of another tool."""
    if not written or any(name not in tools for name, _ in written):
        return None
    return [Call(name, json.dumps(fields, ensure_ascii=False)) for name, fields in written]
