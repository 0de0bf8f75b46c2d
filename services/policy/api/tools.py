"""Tools in chat: how a model is shown them. Its own chat template writes tools, calls and results into the prompt.

`services.policy.api.calls` reads the calls in its answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from triforge.errors import InputError
from triforge.json_text import written


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]


class Tool(BaseModel):
    """A tool that the model may call; its other fields reach the template unchanged."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: _Function

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        given = (self.function.model_extra or {}).get("parameters")
        return given if isinstance(given, dict) else {"type": "object"}


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
            arguments = written(self.function.arguments or "{}")
        except ValueError as error:
            raise InputError(
                f"tool_calls: the arguments of {self.function.name} are {self.function.arguments!r:.80}, expected JSON: {error}"
            ) from None
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


def call_schema(tools: Sequence[Tool]) -> str:
    """Return the JSON schema of one call of one of these tools."""
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        parameters = dict(tool.parameters or {"type": "object"})
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
