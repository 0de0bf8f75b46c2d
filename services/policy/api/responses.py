"""OpenAI's dialect of responses, in sessions: translated to chat, and answered as `response` objects.

A request brings its whole conversation: nothing but the session is stored between requests (`store` changes nothing).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from services.policy.api.calls.reply import Call, ParsedReply
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


class _Text(Strict):
    ignored = ("annotations", "logprobs")

    type: Literal["input_text", "output_text", "text"]
    text: str


class _Image(Strict):
    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto"] = "auto"


_Content = str | list[Annotated[_Text | _Image, Field(discriminator="type")]]


class _Message(Strict):
    ignored = ("id", "status", "phase")

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Content


class _FunctionCall(Strict):
    ignored = ("id", "status", "namespace")

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _FunctionOutput(Strict):
    ignored = ("id", "status")

    type: Literal["function_call_output"]
    call_id: str
    output: _Content


class _Function(Strict):
    ignored = ("strict",)

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _TextOptions(Strict):
    format: dict[str, Any] | None = None


# One of them is checked after another: each names its own type.
_Item = Annotated[_Message | _FunctionCall | _FunctionOutput, Field(union_mode="left_to_right")]


class ResponsesRequest(Strict):
    """Body of `POST /sessions/{id}/v1/responses`."""

    ignored = (
        "store", "include", "metadata", "user", "prompt_cache_key", "safety_identifier", "service_tier",
    )  # fmt: skip

    model: str = ""
    input: str | Annotated[list[_Item], Field(fail_fast=True)]
    instructions: str = ""
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] | None = None
    top_p: Share | None = None
    stream: bool = False
    tools: tuple[_Function, ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: _TextOptions = _TextOptions()
    truncation: Literal["disabled"] = "disabled"

    def chat(self) -> ChatRequest:
        """Return the same request in the dialect of chat."""
        choice, form = self.tool_choice, self.text.format
        if isinstance(choice, dict):
            choice = {"type": choice.get("type"), "function": {"name": choice.get("name")}}
        if form and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
        same = ("temperature", "top_p", "stream", "parallel_tool_calls")
        body = {
            **{name: getattr(self, name) for name in same},
            "messages": list(self._messages()),
            "max_tokens": self.max_output_tokens,
            "tools": [
                tool_part(t.name, t.description, t.parameters or {"type": "object"})
                for t in self.tools
            ],
            "tool_choice": choice,
            "response_format": form,
        }
        return ChatRequest.translated(body)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages; consecutive text and calls of the model are one message."""
        if self.instructions:
            yield {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield {"role": "user", "content": self.input}
            return
        answer: dict[str, Any] = {}  # of the model, not yet whole
        for item in self.input:
            if isinstance(item, _FunctionCall):
                answer = answer or {"role": "assistant", "content": ""}
                call = call_part(item.call_id, item.name, item.arguments)
                answer.setdefault("tool_calls", []).append(call)
                continue
            if answer:
                yield answer
                answer = {}
            if isinstance(item, _FunctionOutput):
                content = _content(item.output)
                yield {"role": "tool", "tool_call_id": item.call_id, "content": content}
            elif item.role == "assistant":
                answer = {"role": "assistant", "content": _content(item.content)}
            else:
                yield {"role": item.role, "content": _content(item.content)}
        if answer:
            yield answer


def _content(content: _Content) -> Any:
    parts = [content] if isinstance(content, str) else content
    return content_of(image_part(p.image_url) if isinstance(p, _Image) else _text(p) for p in parts)


def _text(part: str | _Text) -> str:
    return part if isinstance(part, str) else part.text


class ResponsesDialect(Dialect[ChatRequest]):
    """Answers as `response` objects; a request has one sample."""

    _events = 0
    _open = False  # whether the text's item has begun

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        output = answers[0].reply.outputs[0]
        reply = self._parse(output, 0)
        texts = [self._message(reply.text)] if reply.text or not reply.calls else []
        items = [*texts, *map(_call_item, reply.calls)]
        return self._response(items, output.finish, _usage(*self.counts(answers)))

    def _response(
        self, items: list[dict[str, Any]], finish: str | None = None, usage: Any = None
    ) -> dict[str, Any]:
        cut = finish == "length"
        status = "in_progress" if finish is None else "incomplete" if cut else "completed"
        return {
            "id": f"resp_{self.name}",
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": items,
            "parallel_tool_calls": True,
            "temperature": self.body.temperature,
            "top_p": self.body.top_p,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    def _message(self, text: str | None, status: str = "completed") -> dict[str, Any]:
        return {
            "type": "message",
            "id": f"msg_{self.name}",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [_text_part(text)],
        }

    def _begin(self, number: int, piece: Partial) -> Iterable[str]:
        response = self._response([])
        yield self._event("created", response=response)
        yield self._event("in_progress", response=response)

    def _text(self, number: int, piece: Partial, new: str) -> Iterable[str]:
        yield from self._open_text()
        yield self._text_event("output_text.delta", delta=new, logprobs=[])

    def _open_text(self) -> Iterable[str]:
        if not self._open:
            self._open = True
            item = self._message(None, "in_progress")
            yield self._event("output_item.added", output_index=0, item=item)
            yield self._text_event("content_part.added", part=_text_part(""))

    def _end(self, number: int, piece: Partial, reply: ParsedReply) -> Iterable[str]:
        items = []
        if not reply.calls:
            yield from self._open_text()
        if self._open:
            text = self._sent[number][0]
            items.append(self._message(text))
            yield self._text_event("output_text.done", text=text, logprobs=[])
            yield self._text_event("content_part.done", part=_text_part(text))
            yield self._event("output_item.done", output_index=0, item=items[0])
        for call in reply.calls:
            yield from self._call(call, len(items))
            items.append(_call_item(call))
        response = self._response(items, piece.finish, _usage(*self.streamed_counts()))
        yield self._event(response["status"], response=response)

    def _call(self, call: Call, index: int) -> Iterable[str]:
        item = _call_item(call)
        place = {"output_index": index, "item_id": item["id"]}
        begun = item | {"arguments": "", "status": "in_progress"}
        yield self._event("output_item.added", output_index=index, item=begun)
        yield self._event("function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event(
            "function_call_arguments.done", **place, name=call.name, arguments=call.arguments
        )
        yield self._event("output_item.done", output_index=index, item=item)

    def _text_event(self, kind: str, **body: Any) -> str:
        place = {"item_id": f"msg_{self.name}", "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **body)

    def _event(self, kind: str, **body: Any) -> str:
        self._events += 1
        return typed_event(f"response.{kind}", sequence_number=self._events - 1, **body)


def _usage(prompt: int, sampled: int, cached: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _call_item(call: Call) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call.id}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }
