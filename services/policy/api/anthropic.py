"""Anthropic's dialect of messages, in sessions: translated to chat, and answered as `message` objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from services.policy.api.calls.reply import ParsedReply
from services.policy.api.chat import (
    ChatRequest,
    call_part,
    content_of,
    image_part,
    tool_part,
)
from services.policy.api.openai import Share, Strict, Tokens
from services.policy.api.streams import Dialect, typed_event
from services.policy.engines.protocol import Partial
from services.policy.gateway import Answer
from triforge.errors import TriforgeError

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class _Text(Strict):
    ignored = ("cache_control", "citations")

    type: Literal["text"]
    text: str


class _Source(Strict):
    type: Literal["base64"]
    media_type: str
    data: str


class _Image(Strict):
    ignored = ("cache_control",)

    type: Literal["image"]
    source: _Source


class _ToolUse(Strict):
    ignored = ("cache_control", "caller")

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _ToolResult(Strict):
    ignored = ("cache_control", "is_error")

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[_Text | _Image, Field(discriminator="type")]] = ""


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
        calls = [
            call_part(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
            for block in blocks
            if isinstance(block, _ToolUse)
        ]
        if calls or message["content"] or not results:
            yield message | ({"tool_calls": calls} if calls else {})


def _content(content: str | Sequence[Strict]) -> Any:
    parts: list[Any] = []
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, _Image):
            source = block.source
            parts.append(image_part(f"data:{source.media_type};base64,{source.data}"))
        elif isinstance(block, str | _Text):
            parts.append(block if isinstance(block, str) else block.text)
    return content_of(parts)


class _Tool(Strict):
    ignored = ("cache_control",)

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] = "custom"


class _Choice(Strict):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False

    def chat(self) -> Any:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class MessagesRequest(Strict):
    """Body of `POST /sessions/{id}/v1/messages`."""

    ignored = ("metadata", "service_tier")

    model: str = ""
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_tokens: Tokens
    system: str | list[_Text] = ""
    temperature: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False
    tools: tuple[_Tool, ...] = ()
    tool_choice: _Choice = _Choice()
    thinking: dict[Literal["type"], Literal["disabled"]] | None = None

    def chat(self) -> ChatRequest:
        """Return the same request in the dialect of chat."""
        system = _content(self.system)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for message in self.messages:
            messages += message.chat()
        same = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        body = {
            **{name: getattr(self, name) for name in same},
            "messages": messages,
            "stop": self.stop_sequences,
            "tools": [tool_part(t.name, t.description, t.input_schema) for t in self.tools],
            "tool_choice": self.tool_choice.chat(),
            "parallel_tool_calls": not self.tool_choice.disable_parallel_tool_use,
        }
        return ChatRequest.translated(body)


class MessagesDialect(Dialect[ChatRequest]):
    """Answers as `message` objects; a request has one sample."""

    _blocks = 0
    _open = False  # whether a block of text has begun

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        output = answers[0].reply.outputs[0]
        reply = self._parse(output, 0)
        texts = [{"type": "text", "text": reply.text}] if reply.text or not reply.calls else []
        stop = _STOPS[reply.finish(output.finish)]
        return self._message([*texts, *_uses(reply)], stop, _usage(*self.counts(answers)))

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
        yield from self._open_text()
        yield self._delta({"type": "text_delta", "text": new})

    def _open_text(self) -> Iterable[str]:
        if not self._open:
            self._open = True
            yield self._start({"type": "text", "text": ""})

    def _end(self, number: int, piece: Partial, reply: ParsedReply) -> Iterable[str]:
        if not reply.calls:
            yield from self._open_text()
        if self._open:
            yield self._stop()
        for use in _uses(reply):
            yield self._start({**use, "input": {}})
            text = json.dumps(use["input"], ensure_ascii=False)
            yield self._delta({"type": "input_json_delta", "partial_json": text})
            yield self._stop()
        stop = {"stop_reason": _STOPS[reply.finish(str(piece.finish))], "stop_sequence": None}
        yield typed_event("message_delta", delta=stop, usage=_usage(*self.streamed_counts()))

    def end(self) -> Iterable[str]:
        yield typed_event("message_stop")

    def broken_off(self, error: TriforgeError) -> str:
        return typed_event("error", error={"type": "api_error", "message": error.detail})

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
