"""OpenAI's dialect of responses, in sessions: its requests into those of chat, our replies and streams into its.

Nothing is stored between requests but the session itself: a request brings its whole conversation (`store` changes nothing).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from services.policy.api.openai import ChatRequest, TypedEvents, typed_event
from services.policy.api.openai_fields import Strict
from services.policy.api.tools import Call, Said
from services.policy.engines.protocol import Partial, Tops
from triforge.types import GenerateReply

_Status = Literal["in_progress", "completed", "incomplete"] | None


class _Part(Strict):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None

    def chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class _Image(Strict):
    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto"] | None = None

    def chat(self) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": self.image_url}}


_Parts = list[Annotated[_Part | _Image, Field(discriminator="type")]]


class _Item(Strict):
    id: str | None = None
    status: _Status = None


class _Message(_Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | _Parts
    phase: str | None = None


class _FunctionCall(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class _FunctionOutput(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str | _Parts


class _Function(Strict):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def chat(self) -> dict[str, Any]:
        function = {"name": self.name, "parameters": self.parameters or {"type": "object"}}
        said = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {**function, **said}}


class _Choice(Strict):
    type: Literal["function"]
    name: str


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    def chat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.schema_}}


class _Shape(Strict):
    format: _Format | None = None
    verbosity: None = None


class ResponsesRequest(Strict):
    """Body of `POST /sessions/{id}/v1/responses`."""

    model: str = ""
    input: str | list[_Message | _FunctionCall | _FunctionOutput]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=131072)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    stream: bool | None = None
    tools: list[_Function] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Choice | None = None
    parallel_tool_calls: bool | None = None
    text: _Shape | None = None
    # These change nothing of an answer.
    store: bool | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None

    def chat(self) -> ChatRequest:
        """The same request in the dialect of chat."""
        choice: Any = self.tool_choice
        if isinstance(choice, _Choice):
            choice = {"type": "function", "function": {"name": choice.name}}
        shape = self.text.format if self.text else None
        given = {
            "messages": list(self._messages()),
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "tools": [tool.chat() for tool in self.tools] if self.tools else None,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": shape.chat() if shape else None,
        }
        return ChatRequest.of(given)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """What a model has said in a row, text and calls, is one message."""
        if self.instructions:
            yield {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield {"role": "user", "content": self.input}
            return
        said: dict[str, Any] = {}
        for item in self.input:
            match item:
                case _FunctionCall():
                    said = said or {"role": "assistant", "content": "", "tool_calls": []}
                    function = {"name": item.name, "arguments": item.arguments}
                    said.setdefault("tool_calls", []).append(
                        {"id": item.call_id, "function": function}
                    )
                    continue
                case _FunctionOutput():
                    found = {
                        "role": "tool",
                        "tool_call_id": item.call_id,
                        "content": _content(item.output),
                    }
                case _Message():
                    found = {"role": item.role, "content": _content(item.content)}
            if said:
                yield said
            said = found if found["role"] == "assistant" else {}
            if not said:
                yield found
        if said:
            yield said


def _content(content: str | _Parts) -> str | list[dict[str, Any]]:
    """Text, or parts where there are images."""
    if isinstance(content, str):
        return content
    if any(isinstance(part, _Image) for part in content):
        return [part.chat() for part in content]
    return "".join(part.text for part in content if isinstance(part, _Part))


def response(
    body: ChatRequest, reply: GenerateReply, _: Sequence[Tops], *, model: str, name: str
) -> dict[str, Any]:
    """Our reply as a `response`; it has one sample."""
    output = reply.outputs[0]
    answer = body.said(output.text).named(f"{name}-0")
    texts = [_said_item(name, answer.text)] if answer.text or not answer.calls else []
    usage = _usage(len(reply.prompt_ids), len(output.ids), reply.cached_tokens)
    items = [*texts, *(_call_item(call) for call in answer.calls)]
    return _whole(body, model, name, items, output.finish, usage)


def _whole(
    body: ChatRequest, model: str, name: str, items: list[dict[str, Any]], finish: str | None, usage: Any
) -> dict[str, Any]:  # fmt: skip
    cut = finish == "length"
    status = "in_progress" if finish is None else "incomplete" if cut else "completed"
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": items,
        "parallel_tool_calls": True,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }


def _usage(prompt: int, sampled: int, cached: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _said_item(name: str, text: str | None, status: str = "completed") -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": content}  # fmt: skip


def _call_item(call: Call, status: str = "completed") -> dict[str, Any]:
    arguments = call.arguments if status == "completed" else ""
    return {
        "type": "function_call",
        "id": f"fc_{call.id}",
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
        "status": status,
    }


class ResponseDeltas(TypedEvents):
    """OpenAI's events of responses."""

    def __init__(self, body: ChatRequest, *, model: str, name: str) -> None:
        super().__init__(body, model=model, name=name)
        self._items: list[dict[str, Any]] = []
        self._count = 0

    def end(self) -> list[str]:
        """Nothing follows the last piece."""
        return []

    def _begin(self, piece: Partial) -> list[str]:  # noqa: ARG002
        whole = _whole(self._body, self._model, self._name, [], None, None)
        return [self._event(f"response.{k}", response=whole) for k in ("created", "in_progress")]

    def _text(self, new: str) -> list[str]:
        delta = self._of_text("response.output_text.delta", delta=new, logprobs=[])
        return [*([] if self._sent else self._open()), delta]

    def _open(self) -> list[str]:
        item = _said_item(self._name, None, "in_progress")
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._of_text("response.content_part.added", part=_part("")),
        ]

    def _end(self, answer: Said, piece: Partial) -> list[str]:
        found, items = [], self._items
        if self._sent or not answer.calls:
            found += [] if self._sent else self._open()
            text = self._sent
            items.append(_said_item(self._name, text))
            found += [
                self._of_text("response.output_text.done", text=text, logprobs=[]),
                self._of_text("response.content_part.done", part=_part(text)),
                self._event("response.output_item.done", output_index=0, item=items[0]),
            ]
        for call in answer.calls:
            found += self._called(call)
        usage = _usage(piece.prompt_tokens, len(piece.ids), piece.cached_tokens)
        whole = _whole(self._body, self._model, self._name, items, piece.finish, usage)
        return [*found, self._event(f"response.{whole['status']}", response=whole)]

    def _called(self, call: Call) -> list[str]:
        at, item = len(self._items), _call_item(call)
        self._items.append(item)
        where = {"output_index": at, "item_id": item["id"]}
        begun = _call_item(call, "in_progress")
        arguments = "response.function_call_arguments"
        return [
            self._event("response.output_item.added", output_index=at, item=begun),
            self._event(f"{arguments}.delta", **where, delta=call.arguments),
            self._event(f"{arguments}.done", **where, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=at, item=item),
        ]

    def _of_text(self, kind: str, **body: Any) -> str:
        return self._event(
            kind, item_id=f"msg_{self._name}", output_index=0, content_index=0, **body
        )

    def _event(self, kind: str, **body: Any) -> str:
        self._count += 1
        return typed_event(kind, sequence_number=self._count - 1, **body)
