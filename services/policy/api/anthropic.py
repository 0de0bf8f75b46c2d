"""Anthropic's dialect of messages, in sessions: translated to chat, and answered as `message` objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from services.policy.api.chat import ChatRequest
from services.policy.api.openai import Strict, Tokens
from services.policy.api.streams import Dialect, typed_event
from services.policy.api.tools import ParsedReply
from services.policy.engines.protocol import Partial
from services.policy.gateway import Answer

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


class _ToolUse(_Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None

    def chat(self) -> dict[str, Any]:
        arguments = json.dumps(self.input, ensure_ascii=False)
        return {"id": self.id, "function": {"name": self.name, "arguments": arguments}}


class _ToolResult(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[_Text | _Image, Field(discriminator="type")]] = ""
    is_error: bool = False


class _Message(Strict):
    role: Literal["user", "assistant"]
    content: (
        str | list[Annotated[_Text | _Image | _ToolUse | _ToolResult, Field(discriminator="type")]]
    )

    def chat(self) -> Iterator[dict[str, Any]]:
        """Yield messages of chat: results of tools are messages of their own, before the text."""
        blocks = [] if isinstance(self.content, str) else self.content
        results = [block for block in blocks if isinstance(block, _ToolResult)]
        for block in results:
            content = _content(block.content)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
        message = {"role": self.role, "content": _content(self.content)}
        calls = [block.chat() for block in blocks if isinstance(block, _ToolUse)]
        if calls:
            yield {**message, "tool_calls": calls}
        elif message["content"] or not results:
            yield message


def _content(content: str | Sequence[_Block]) -> Any:
    """Return text, or parts where there are images."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for block in content:
        if isinstance(block, _Image):
            url = f"data:{block.source.media_type};base64,{block.source.data}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        elif isinstance(block, _Text):
            parts.append({"type": "text", "text": block.text})
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


class _Tool(_Block):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None

    def chat(self) -> dict[str, Any]:
        function = {"name": self.name, "parameters": self.input_schema}
        description = {"description": self.description} if self.description else {}
        return {"type": "function", "function": function | description}


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
    max_tokens: Tokens
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
        """Return the same request in the dialect of chat."""
        system = _content(self.system)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for message in self.messages:
            messages += message.chat()
        one_call = self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use
        same = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        body = {
            **{name: getattr(self, name) for name in same},
            "messages": messages,
            "stop": self.stop_sequences,
            "tools": [tool.chat() for tool in self.tools] if self.tools else None,
            "tool_choice": self.tool_choice.chat() if self.tool_choice else None,
            "parallel_tool_calls": False if one_call else None,
        }
        return ChatRequest.translated(body)


class MessagesDialect(Dialect[ChatRequest]):
    """Answers as `message` objects; a request has one sample."""

    _blocks = 0
    _open = False  # whether a block of text has begun

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        reply = answers[0].reply
        output = reply.outputs[0]
        parsed = self._parse(output.text, 0)
        texts = [{"type": "text", "text": parsed.text}] if parsed.text or not parsed.calls else []
        usage = _usage(len(reply.prompt_ids), len(output.ids), reply.cached_tokens)
        stop = _STOPS[parsed.finish(output.finish)]
        return self._message([*texts, *_uses(parsed)], stop, usage)

    def _message(self, content: list[Any], stop: str | None, usage: Any) -> dict[str, Any]:
        return {
            "id": f"msg_{self.name}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }

    def _begin(self, number: int, piece: Partial) -> Iterable[str]:
        usage = _usage(piece.prompt_tokens, 0, piece.cached_tokens)
        yield typed_event("message_start", message=self._message([], None, usage))

    def _text(self, number: int, piece: Partial, new: str) -> Iterable[str]:
        if not self._open:
            self._open = True
            yield self._start({"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": new})

    def _end(self, number: int, piece: Partial, reply: ParsedReply) -> Iterable[str]:
        if self._open:
            yield self._stop()
        for use in _uses(reply):
            yield self._start({**use, "input": {}})
            text = json.dumps(use["input"], ensure_ascii=False)
            yield self._delta({"type": "input_json_delta", "partial_json": text})
            yield self._stop()
        stop = {"stop_reason": _STOPS[reply.finish(str(piece.finish))], "stop_sequence": None}
        yield typed_event("message_delta", delta=stop, usage=_usage(*self.counts()))

    def end(self) -> Iterable[str]:
        yield typed_event("message_stop")

    def _start(self, block: dict[str, Any]) -> str:
        return typed_event("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return typed_event("content_block_delta", index=self._blocks, delta=delta)

    def _stop(self) -> str:
        self._blocks += 1
        return typed_event("content_block_stop", index=self._blocks - 1)


def _uses(reply: ParsedReply) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in reply.calls
    ]


def _usage(prompt: int, sampled: int, cached: int) -> dict[str, int]:
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": sampled,
    }
