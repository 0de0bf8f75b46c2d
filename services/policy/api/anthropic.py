"""Anthropic's dialect of messages, in sessions: its requests into those of chat, our replies and streams into its.

What a request asks is what the chat dialect asks (`services.policy.api.openai`); here only its form is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from services.policy.api.openai import ChatRequest, TypedEvents, typed_event
from services.policy.api.openai_fields import Strict
from services.policy.api.tools import Said
from services.policy.engines.protocol import Partial, Tops
from triforge.types import GenerateReply

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Block(Strict):
    cache_control: dict[str, Any] | None = None  # changes nothing of an answer


class _Text(_Block):
    type: Literal["text"]
    text: str
    citations: None = None


class _Source(Strict):
    type: Literal["base64"]
    media_type: str
    data: str


class _Image(_Block):
    type: Literal["image"]
    source: _Source

    def chat(self) -> dict[str, Any]:
        url = f"data:{self.source.media_type};base64,{self.source.data}"
        return {"type": "image_url", "image_url": {"url": url}}


class _ToolUse(_Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class _ToolResult(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[_Text | _Image, Field(discriminator="type")]] = ""
    is_error: bool = False


_Content = (
    str | list[Annotated[_Text | _Image | _ToolUse | _ToolResult, Field(discriminator="type")]]
)


class _Message(Strict):
    role: Literal["user", "assistant"]
    content: _Content

    def chat(self) -> Iterator[dict[str, Any]]:
        """As messages of chat: results of tools are messages of their own, before what is said."""
        blocks = [] if isinstance(self.content, str) else self.content
        for block in blocks:
            if isinstance(block, _ToolResult):
                found = _seen(block.content)
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": found}
        text = _seen(self.content)
        calls = [_call(block) for block in blocks if isinstance(block, _ToolUse)]
        if calls:
            yield {"role": self.role, "content": text, "tool_calls": calls}
        elif text or not any(isinstance(block, _ToolResult) for block in blocks):
            yield {"role": self.role, "content": text}


def _seen(content: Any) -> Any:
    """Text, or parts where there are images."""
    if isinstance(content, str) or not any(isinstance(block, _Image) for block in content):
        return _text(content)
    return [
        block.chat() if isinstance(block, _Image) else {"type": "text", "text": block.text}
        for block in content
        if isinstance(block, _Image | _Text)
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.text for block in content if isinstance(block, _Text))


def _call(block: _ToolUse) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "function": {"name": block.name, "arguments": arguments}}


class _Tool(_Block):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None

    def chat(self) -> dict[str, Any]:
        function = {"name": self.name, "parameters": self.input_schema}
        said = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {**function, **said}}


class _Choice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def chat(self) -> Any:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name or ""}}
        return "required" if self.type == "any" else self.type


class _Thinking(Strict):
    type: Literal["disabled"]


class MessagesRequest(Strict):
    """Body of `POST /sessions/{id}/v1/messages`."""

    model: str = ""
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=131072)]
    system: str | list[_Text] = ""
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    # These change nothing of an answer.
    thinking: _Thinking | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def chat(self) -> ChatRequest:
        """The same request in the dialect of chat."""
        system = _text(self.system)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for message in self.messages:
            messages += message.chat()
        alone = self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use
        given = {
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "tools": [tool.chat() for tool in self.tools] if self.tools else None,
            "tool_choice": self.tool_choice.chat() if self.tool_choice else None,
            "parallel_tool_calls": False if alone else None,
        }
        return ChatRequest.of(given)


def message(
    body: ChatRequest, reply: GenerateReply, _: Sequence[Tops], *, model: str, name: str
) -> dict[str, Any]:
    """Our reply as a `message`; it has one sample."""
    output = reply.outputs[0]
    answer = body.said(output.text).named(f"{name}-0")
    texts = [{"type": "text", "text": answer.text}] if answer.text or not answer.calls else []
    return {
        **_head(model, name),
        "content": [*texts, *_uses(answer)],
        "stop_reason": _STOPS[answer.finish(output.finish)],
        "usage": _usage(len(reply.prompt_ids), len(output.ids), reply.cached_tokens),
    }


def _uses(answer: Said) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in answer.calls
    ]


def _head(model: str, name: str) -> dict[str, Any]:
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(prompt: int, sampled: int, cached: int) -> dict[str, int]:
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": sampled,
    }


class MessageDeltas(TypedEvents):
    """Anthropic's events."""

    _blocks = 0

    def _begin(self, piece: Partial) -> list[str]:
        usage = _usage(piece.prompt_tokens, 0, piece.cached_tokens)
        whole = {**_head(self._model, self._name), "usage": usage}
        return [typed_event("message_start", message=whole)]

    def _text(self, new: str) -> list[str]:
        begin = [] if self._sent else self._open({"type": "text", "text": ""})
        return [*begin, self._delta({"type": "text_delta", "text": new})]

    def _end(self, answer: Said, piece: Partial) -> list[str]:
        found = [self._close()] if self._sent else []
        for use in _uses(answer):
            found += self._open({**use, "input": {}})
            text = json.dumps(use["input"], ensure_ascii=False)
            found += [
                self._delta({"type": "input_json_delta", "partial_json": text}),
                self._close(),
            ]
        assert piece.finish is not None
        stop = {"stop_reason": _STOPS[answer.finish(piece.finish)], "stop_sequence": None}
        usage = _usage(piece.prompt_tokens, len(piece.ids), piece.cached_tokens)
        return [*found, typed_event("message_delta", delta=stop, usage=usage)]

    def end(self) -> list[str]:
        """The events after the last piece."""
        return [typed_event("message_stop")]

    def _open(self, block: dict[str, Any]) -> list[str]:
        return [typed_event("content_block_start", index=self._blocks, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> str:
        return typed_event("content_block_delta", index=self._blocks, delta=delta)

    def _close(self) -> str:
        self._blocks += 1
        return typed_event("content_block_stop", index=self._blocks - 1)
