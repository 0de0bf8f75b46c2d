"""The OpenAI dialect of chat: its requests into ours, our replies, streams and errors into its. Knows no engine.

Images are taken as `image_url` parts with a `data:` URI, and go no further than the engine; tools are those of
`services.policy.tools`. Beside the standard fields a request may carry `regex`, `top_k`, `stop_token_ids` and `affinity`, and a
reply carries `metadata.weight_version`. Fields that would change the answer and are not supported are refused, others ignored.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.policy.engine import Partial
from services.policy.tools import PastCall, Said, Tool, begun, said
from triforge.errors import InputError, TriforgeError
from triforge.rendering import Renderer
from triforge.types import (
    ChatMessage,
    GenerateReply,
    GenerateRequest,
    ImagePart,
    Sampling,
    TextPart,
)
from triforge.vision.files import describe, from_data_uri
from triforge.web.problems import readable_error

_log = logging.getLogger(__name__)
_UNSUPPORTED = (
    "functions", "logit_bias", "presence_penalty", "frequency_penalty", "audio", "top_logprobs", "min_p",
    "repetition_penalty",
)  # fmt: skip


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _Url(BaseModel):
    url: str


class _Image(BaseModel):
    type: Literal["image_url"]
    image_url: _Url

    def part(self, held: dict[str, bytes]) -> ImagePart:
        data = from_data_uri(self.image_url.url, where="image_url")
        image = describe(data, where="image_url")
        held[image.id] = data
        return ImagePart(image=image)


class _ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Annotated[_Text | _Image, Field(discriminator="type")]] | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: given by {self.role}, expected of an assistant only")
        if self.content is None and not self.tool_calls:
            raise ValueError("content: given none, expected text")
        return self

    @property
    def tooled(self) -> bool:
        """Whether it calls a tool or is what one has answered."""
        return self.role == "tool" or bool(self.tool_calls)

    def shown(self) -> dict[str, Any]:
        """As templates take it, with calls and results of tools."""
        parts = self.content if isinstance(self.content, list) else []
        if any(isinstance(part, _Image) for part in parts):
            raise InputError("messages: given tools and images, expected one of them in a request")
        role = "system" if self.role == "developer" else self.role
        found: dict[str, Any] = {"role": role, "content": self._text()}
        if self.tool_calls:
            found["tool_calls"] = [call.shown() for call in self.tool_calls]
        return found | ({"tool_call_id": self.tool_call_id} if self.tool_call_id else {})

    def plain(self, held: dict[str, bytes]) -> ChatMessage:
        """As our own message; the bytes of its images go to `held`."""
        role = "system" if self.role == "developer" else self.role
        assert role != "tool"
        assert self.content is not None
        if isinstance(self.content, str) or all(isinstance(p, _Text) for p in self.content):
            return ChatMessage(role=role, content=self._text())
        parts = (
            TextPart(text=part.text) if isinstance(part, _Text) else part.part(held)
            for part in self.content
        )
        return ChatMessage(role=role, content=tuple(parts))

    def _text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or () if isinstance(part, _Text))


class _JsonSchema(BaseModel):
    name: str = "answer"
    schema_: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    def constraint(self) -> str | None:
        if self.type == "json_object":
            return '{"type": "object"}'
        if self.type == "json_schema" and self.json_schema is not None:
            return json.dumps(self.json_schema.schema_)
        return None


class _StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """Body of `POST /v1/chat/completions`."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    messages: Annotated[list[_ChatMessage], Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=64)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=131072)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=131072)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    response_format: _ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    regex: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    affinity: str = ""

    @property
    def tool_names(self) -> list[str]:
        """Names of the tools that the model may call."""
        return [tool.function.name for tool in self._offered()]

    def _offered(self) -> list[Tool]:
        return [] if self.tool_choice == "none" else self.tools or []

    def request(self, held: dict[str, bytes], renderer: Renderer) -> GenerateRequest:
        """As our own request; the bytes of its images go to `held`, by id. `renderer` shows tools to the model."""
        self._raise_if_unsupported()
        schema = self.response_format.constraint() if self.response_format else None
        if schema is not None and self.regex is not None:
            raise InputError("regex and response_format exclude each other; give one")
        given = {
            "max_new_tokens": self.max_completion_tokens or self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            "stop_token_ids": self.stop_token_ids,
            "seed": self.seed,
            "regex": self.regex,
            "json_schema": schema,
        }
        sampling = Sampling.model_validate({k: v for k, v in given.items() if v is not None})
        whole = GenerateRequest(n=self.n or 1, sampling=sampling, affinity=self.affinity)
        return whole.model_copy(update=self._prompt(held, renderer))

    def _prompt(self, held: dict[str, bytes], renderer: Renderer) -> dict[str, Any]:
        """Messages that the service renders, or ids where there are tools, which no message of ours can hold."""
        offered = self._offered()
        if not offered and not any(message.tooled for message in self.messages):
            return {"messages": tuple(message.plain(held) for message in self.messages)}
        shown = [message.shown() for message in self.messages]
        try:
            tools = [tool.model_dump() for tool in offered]
            return {"prefix_ids": tuple(renderer.render_with_tools(shown, tools))}
        except (RecursionError, ValueError) as error:  # pydantic raises either
            if isinstance(error, TriforgeError):
                raise
            raise InputError("tools: given ones that are nested too deep") from None

    def _raise_if_unsupported(self) -> None:
        extra = self.model_extra or {}
        refused = [name for name in _UNSUPPORTED if extra.get(name)]
        if self.tools and self.parallel_tool_calls is False:
            refused.append("parallel_tool_calls = false")
        if refused:
            raise InputError(f"{', '.join(refused)}: not supported by this endpoint; leave out")
        if self.tool_choice not in (None, "auto", "none"):
            raise InputError(
                f"tool_choice: given {self.tool_choice!r:.80}, expected auto or none; the model itself chooses"
            )


def completion(
    request: ChatRequest, reply: GenerateReply, *, model: str, renderer: Renderer
) -> dict[str, Any]:
    """Our reply as a `chat.completion` object."""
    spans = [span for output in reply.outputs for span in output.versions]
    sampled = sum(len(output.ids) for output in reply.outputs)
    answers = [said(output.text, request.tool_names) for output in reply.outputs]
    return {
        **_head("chat.completion", model, max((span.version for span in spans), default=None)),
        "choices": [
            {
                "index": index,
                "message": _message(answer),
                "finish_reason": answer.finish(output.finish),
                "logprobs": _logprobs(output.ids, output.logprobs, renderer)
                if request.logprobs
                else None,
            }
            for index, (output, answer) in enumerate(zip(reply.outputs, answers, strict=True))
        ],
        "usage": _usage(len(reply.prompt_ids), sampled, reply.cached_tokens),
    }


def _message(answer: Said) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.calls:
        found["content"] = answer.text or None
        found["tool_calls"] = [call.shown() for call in answer.calls]
    return found


def model_list(*, role: str, version: int, uri: str) -> dict[str, Any]:
    """Body of `GET /v1/models`."""
    return {
        "object": "list",
        "data": [
            {
                "id": role,
                "object": "model",
                "created": 0,
                "owned_by": "triforge",
                "root": uri,
                "metadata": {"weight_version": str(version)},
            }
        ],
    }


def _head(kind: str, model: str, version: int | None) -> dict[str, Any]:
    """What every object and chunk begins with; `version` is the newest weight version in it."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "metadata": {"weight_version": None if version is None else str(version)},
    }


def _usage(prompt: int, sampled: int, cached: int) -> dict[str, Any]:
    """Token counts; those of the prompt once, however many samples it had."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _logprobs(ids: Sequence[int], logprobs: Sequence[float], renderer: Renderer) -> dict[str, Any]:
    """Log-probabilities in OpenAI's form."""
    content = []
    for token, logprob in zip(ids, logprobs, strict=True):
        text = renderer.decode([token], skip_special_tokens=False)
        content.append(
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        )
    return {"content": content}


# ---- streams ----


class Deltas:
    """What is new in each piece of a streamed answer, as `chat.completion.chunk` events."""

    def __init__(
        self, request: ChatRequest, *, model: str, renderer: Renderer, version: int
    ) -> None:
        self._request = request
        self._renderer = renderer
        self._head = _head("chat.completion.chunk", model, version)
        self._sent: dict[int, tuple[str, int]] = {}  # text and number of tokens, by sample
        self._ended: list[Partial] = []

    def take(self, number: int, piece: Partial) -> list[str]:
        """The events of a piece."""
        found = []
        if number not in self._sent:
            self._sent[number] = ("", 0)
            found.append(self._choice(number, {"role": "assistant", "content": ""}))
        text, done = self._sent[number]
        answer = self._said(piece)
        # A stop string that was sent in part is cut off at the end; what was sent cannot be taken back.
        new = answer.text.removeprefix(text) if answer.text.startswith(text) else ""
        if new or (self._request.logprobs and len(piece.ids) > done):
            shown = None
            if self._request.logprobs:
                shown = _logprobs(piece.ids[done:], piece.logprobs[done:], self._renderer)
            found.append(self._choice(number, {"content": new}, shown=shown))
            self._sent[number] = (text + new, len(piece.ids))
        if piece.finish is not None:
            self._ended.append(piece)
            if answer.calls:
                calls = [{"index": i, **call.shown()} for i, call in enumerate(answer.calls)]
                found.append(self._choice(number, {"tool_calls": calls}))
            newest = max((span.version for span in piece.versions), default=None)
            if newest is not None:
                self._head["metadata"] = {"weight_version": str(newest)}
            found.append(self._choice(number, {}, finish=answer.finish(piece.finish)))
        return found

    def end(self) -> list[str]:
        """The events after the last piece."""
        found = []
        options = self._request.stream_options
        if options is not None and options.include_usage:
            usage = _usage(
                max((piece.prompt_tokens for piece in self._ended), default=0),
                sum(len(piece.ids) for piece in self._ended),
                max((piece.cached_tokens for piece in self._ended), default=0),
            )
            found.append(_event({**self._head, "choices": [], "usage": usage}))
        return [*found, "data: [DONE]\n\n"]

    def _said(self, piece: Partial) -> Said:
        """What may be sent of a piece; a call of a tool is sent when it is whole."""
        names = self._request.tool_names
        return Said(begun(piece.text, names)) if piece.finish is None else said(piece.text, names)

    def _choice(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        shown: dict[str, Any] | None = None,
    ) -> str:
        choice = {"index": number, "delta": delta, "finish_reason": finish, "logprobs": shown}
        return _event({**self._head, "choices": [choice]})


async def events(
    pieces: AsyncGenerator[tuple[int, Partial], None], deltas: Deltas
) -> AsyncIterator[str]:
    """Wait for the first piece, so that what fails before it still has a status of its own; then all events."""
    try:
        first = await anext(pieces)
    except BaseException:
        await pieces.aclose()
        raise
    return _events(first, pieces, deltas)


async def _events(
    first: tuple[int, Partial], pieces: AsyncGenerator[tuple[int, Partial], None], deltas: Deltas
) -> AsyncGenerator[str, None]:
    async with aclosing(pieces):
        for event in deltas.take(*first):
            yield event
        try:
            async for piece in pieces:
                for event in deltas.take(*piece):
                    yield event
        except TriforgeError as error:
            _log.warning("a streamed answer broke off: %s", error.detail)
            yield _event({"error": readable_error(error.kind, error.status, error.detail)})
            return
        for event in deltas.end():
            yield event


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
