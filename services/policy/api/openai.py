"""The OpenAI dialect of chat: its requests into ours, our replies, streams and errors into its. Knows no engine.

Images are taken as `image_url` parts with a `data:` URI, and go no further than the engine; tools are those of
`services.policy.api.tools`. Beside the standard fields a request may carry `regex`, `top_k`, `stop_token_ids` and `affinity`, and a
reply carries `metadata.weight_version`. Unknown fields, and those that would change the answer and are not supported, are refused.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, ValidationError, model_validator

from services.policy.api.openai_fields import OpenAIRequest, Strict
from services.policy.api.tools import PastCall, Said, Tool, begun, call_schema, forced, said
from services.policy.engines.protocol import Partial, Tops
from triforge.errors import InputError, TriforgeError
from triforge.rendering import Renderer
from triforge.types import GenerateReply, GenerateRequest, ImageRef, PlacedImage
from triforge.vision.files import describe, from_data_uri
from triforge.web.problems import input_error, openai_error

_log = logging.getLogger(__name__)


class _Text(Strict):
    type: Literal["text"]
    text: str


class _Url(Strict):
    url: str
    detail: Literal["auto"] | None = None


class _Image(Strict):
    type: Literal["image_url"]
    image_url: _Url

    def ref(self, held: dict[str, bytes]) -> ImageRef:
        data = from_data_uri(self.image_url.url, where="image_url")
        image = describe(data, where="image_url")
        held[image.id] = data
        return image


class _ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Annotated[_Text | _Image, Field(discriminator="type")]] | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None  # of the tool that answered
    # What an answer of OpenAI's carries when it is sent back.
    refusal: None = None
    audio: None = None
    function_call: None = None
    provider_specific_fields: dict[str, None] | None = None  # of litellm
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.name and self.role != "tool":
            raise ValueError(f"name: given by {self.role}, expected of a tool only")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: given by {self.role}, expected of an assistant only")
        if self.content is None and not self.tool_calls:
            raise ValueError("content: given none, expected text")
        return self

    @property
    def pictured(self) -> bool:
        """Whether it holds images."""
        return isinstance(self.content, list) and any(isinstance(p, _Image) for p in self.content)

    def shown(self, *, seeing: bool = False) -> dict[str, Any]:
        """As templates take it, with calls and results of tools; with `seeing` the places of images, too."""
        role = "system" if self.role == "developer" else self.role
        found: dict[str, Any] = {"role": role, "content": self._text()}
        if seeing and isinstance(self.content, list) and self.pictured:
            found["content"] = [
                {"type": "text", "text": part.text}
                if isinstance(part, _Text)
                else {"type": "image"}
                for part in self.content
            ]
        if self.tool_calls:
            found["tool_calls"] = [call.shown() for call in self.tool_calls]
        return found | ({"tool_call_id": self.tool_call_id} if self.tool_call_id else {})

    def images(self, held: dict[str, bytes]) -> tuple[ImageRef, ...]:
        """Its images; their bytes go to `held`."""
        parts = self.content if isinstance(self.content, list) else []
        return tuple(part.ref(held) for part in parts if isinstance(part, _Image))

    def _text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or () if isinstance(part, _Text))


class _JsonSchema(Strict):
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None  # it always is
    schema_: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError(
                f"json_schema: expected with the type json_schema and no other, the type is {self.type}"
            )
        return self

    def constraint(self) -> str | None:
        if self.type == "json_object":
            return '{"type": "object"}'
        if self.type == "json_schema" and self.json_schema is not None:
            return json.dumps(self.json_schema.schema_)
        return None


class _Named(Strict):
    name: str


class _Choice(Strict):
    type: Literal["function"]
    function: _Named


class ChatRequest(OpenAIRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[_ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=131072)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: _ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Choice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def tool_names(self) -> list[str]:
        """Names of the tools that the model may call."""
        return [tool.function.name for tool in self._offered()]

    @property
    def forced(self) -> list[Tool]:
        """The tools of which the model must call one; none lets it choose."""
        if isinstance(self.tool_choice, _Choice):
            name = self.tool_choice.function.name
            return [tool for tool in self.tools or [] if tool.function.name == name]
        return (self.tools or []) if self.tool_choice == "required" else []

    def said(self, text: str) -> Said:
        """What is in a whole answer."""
        return forced(text, self.tool_names) if self.forced else said(text, self.tool_names)

    def begun(self, text: str) -> str:
        """The part of an unfinished answer that is text whatever comes next."""
        return "" if self.forced else begun(text, self.tool_names)

    def said_so_far(self, piece: Partial, name: str) -> Said:
        """What may be sent of a piece. A call of a tool is sent when it is whole; `name`, if any, begins its id."""
        if piece.finish is None:
            return Said(self.begun(piece.text))
        return self.said(piece.text).named(name)

    def _offered(self) -> list[Tool]:
        return [] if self.tool_choice == "none" else self.tools or []

    def request(self, held: dict[str, bytes], renderer: Renderer) -> GenerateRequest:
        """As our own request; the bytes of its images go to `held`, by id."""
        wanted = self.unprompted()
        ids, placed = self.prompt(renderer, self.images(held))
        return wanted.model_copy(update={"prefix_ids": tuple(ids), "prefix_images": placed})

    def unprompted(self) -> GenerateRequest:
        """All of our own request but its prompt."""
        self._raise_if_unsupported()
        schema = self.response_format.constraint() if self.response_format else None
        if sum((schema is not None, self.regex is not None, bool(self.forced))) > 1:
            raise InputError(
                "regex, response_format and a tool that must be called exclude each other; give one"
            )
        sampling = self.sampling(
            max_new_tokens=self.max_completion_tokens or self.max_tokens,
            json_schema=call_schema(self.forced) if self.forced else schema,
        )
        return GenerateRequest(n=self.n or 1, sampling=sampling, affinity=self.affinity)

    @property
    def pictured(self) -> bool:
        """Whether any message holds images."""
        return any(message.pictured for message in self.messages)

    def images(self, held: dict[str, bytes]) -> list[tuple[ImageRef, ...]]:
        """The images of each message; their bytes go to `held`, by id."""
        return [message.images(held) for message in self.messages]

    def prompt(
        self,
        renderer: Renderer,
        images: Sequence[Sequence[ImageRef]],
        prefix: Sequence[int] = (),
        seen: Sequence[PlacedImage] = (),
        held: int = 0,
    ) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """The ids of the conversation, and where which image stands.

        With a `prefix` that holds the first `held` messages, and the images that it has `seen`: it and what the others add.
        """
        if not self.pictured:
            return self._ids(renderer, prefix, held), ()
        new = [image for one in images[held:] for image in one]
        return renderer.seeing(prefix, seen, new, lambda ids: self._ids(renderer, ids, held))

    def _ids(self, renderer: Renderer, prefix: Sequence[int], held: int) -> list[int]:
        shown = [message.shown(seeing=True) for message in self.messages[held:]]
        try:
            tools = [tool.model_dump() for tool in self._offered()]
            if prefix:
                return renderer.extend_with_tools(prefix, shown, tools)
            return renderer.render_with_tools(shown, tools)
        except (RecursionError, ValueError) as error:  # pydantic raises either
            if isinstance(error, TriforgeError):
                raise
            raise InputError("tools: given ones that are nested too deep") from None

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """The request that another dialect's request asks for."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise input_error(error) from None

    def _raise_if_unsupported(self) -> None:
        if self.tools and self.parallel_tool_calls is False and not self.forced:
            raise InputError(
                "parallel_tool_calls = false: not supported by this endpoint while the model chooses; leave out"
            )
        if not self.forced and self.tool_choice not in (None, "auto", "none"):
            given = ", ".join(self.tool_names) or "none is given"
            raise InputError(f"tool_choice: expected one of the tools: {given}")
        if self.top_logprobs and not self.logprobs:
            raise InputError("top_logprobs: given without logprobs = true, which it needs")


def completion(
    request: ChatRequest, reply: GenerateReply, tops: Sequence[Tops], *, model: str, renderer: Renderer, name: str = ""
) -> dict[str, Any]:  # fmt: skip
    """Our reply as a `chat.completion` object; `tops` are the alternatives of each output's tokens, `name` ends its ids."""
    spans = [span for output in reply.outputs for span in output.versions]
    sampled = sum(len(output.ids) for output in reply.outputs)
    answers = [
        request.said(output.text).named(name and f"{name}-{index}")
        for index, output in enumerate(reply.outputs)
    ]
    newest = max((span.version for span in spans), default=None)
    return {
        **head("chat.completion", model, newest, name),
        "choices": [
            {
                "index": index,
                "message": _message(answer),
                "finish_reason": answer.finish(output.finish),
                "logprobs": _logprobs(output.ids, output.logprobs, tops[index], renderer)
                if request.logprobs
                else None,
            }
            for index, (output, answer) in enumerate(zip(reply.outputs, answers, strict=True))
        ],
        "usage": usage(len(reply.prompt_ids), sampled, reply.cached_tokens),
    }


def _message(answer: Said) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.calls:
        found["content"] = answer.text or None
        found["tool_calls"] = [call.shown() for call in answer.calls]
    return found


def model_card(*, role: str, version: int, uri: str) -> dict[str, Any]:
    """Body of `GET /v1/models/{model}`."""
    return {
        "id": role,
        "object": "model",
        "created": 0,
        "owned_by": "triforge",
        "root": uri,
        "metadata": {"weight_version": str(version)},
    }


def head(kind: str, model: str, version: int | None, name: str = "") -> dict[str, Any]:
    """What every object and chunk begins with; `version` is the newest weight version in it."""
    return {
        "id": f"{'chatcmpl' if kind.startswith('chat') else 'cmpl'}-{name or uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "metadata": {"weight_version": None if version is None else str(version)},
    }


def usage(prompt: int, sampled: int, cached: int) -> dict[str, Any]:
    """Token counts; those of the prompt once, however many samples it had."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _logprobs(
    ids: Sequence[int], logprobs: Sequence[float], tops: Tops, renderer: Renderer
) -> dict[str, Any]:
    """Log-probabilities in OpenAI's form."""

    def shown(token: int, logprob: float) -> dict[str, Any]:
        text = renderer.decode([token], skip_special_tokens=False)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    others = tops or [()] * len(ids)
    content = [
        {**shown(token, score), "top_logprobs": [shown(other, at) for at, other in row]}
        for token, score, row in zip(ids, logprobs, others, strict=True)
    ]
    return {"content": content}


# ---- streams ----


class Chunks(Protocol):
    """A streamed answer as events."""

    def take(self, number: int, piece: Partial) -> list[str]:
        """The events of a piece of a sample."""

    def end(self) -> list[str]:
        """The events after the last piece."""


def unsent(text: str, sent: str) -> str:
    """What follows the text that was sent. A stop string sent in part is cut off at the end, and nothing is taken back."""
    return text.removeprefix(sent) if text.startswith(sent) else ""


class TypedEvents(ABC):
    """What is new in each piece of a streamed answer of one sample, as events with types."""

    def __init__(self, body: ChatRequest, *, model: str, name: str) -> None:
        self._body, self._model, self._name = body, model, name
        self._sent = ""  # text
        self._begun = False

    def take(self, number: int, piece: Partial) -> list[str]:  # noqa: ARG002 - there is one sample
        """The events of a piece."""
        found = [] if self._begun else self._begin(piece)
        self._begun = True
        answer = self._body.said_so_far(piece, f"{self._name}-0")
        new = unsent(answer.text, self._sent)
        if new:
            found += self._text(new)
            self._sent += new
        if piece.finish is not None:
            found += self._end(answer, piece)
        return found

    @abstractmethod
    def _begin(self, piece: Partial) -> list[str]:
        """The events before everything else."""

    @abstractmethod
    def _text(self, new: str) -> list[str]:
        """The events of further text; none was `_sent` before the first."""

    @abstractmethod
    def _end(self, answer: Said, piece: Partial) -> list[str]:
        """The events of the last piece, behind its text."""


class Deltas:
    """What is new in each piece of a streamed answer, as `chat.completion.chunk` events."""

    def __init__(
        self, request: ChatRequest, *, model: str, renderer: Renderer, version: int, name: str = ""
    ) -> None:
        self._request = request
        self._renderer = renderer
        self._name = name
        self._head = head("chat.completion.chunk", model, version, name)
        self._sent: dict[int, tuple[str, int]] = {}  # text and number of tokens, by sample
        self._ended: list[Partial] = []

    def take(self, number: int, piece: Partial) -> list[str]:
        """The events of a piece."""
        found = []
        if number not in self._sent:
            self._sent[number] = ("", 0)
            found.append(self._choice(number, {"role": "assistant", "content": ""}))
        text, done = self._sent[number]
        answer = self._request.said_so_far(piece, self._name and f"{self._name}-{number}")
        new = unsent(answer.text, text)
        if new or (self._request.logprobs and len(piece.ids) > done):
            shown = None
            if self._request.logprobs:
                tops = piece.tops[done:]
                shown = _logprobs(piece.ids[done:], piece.logprobs[done:], tops, self._renderer)
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
        counts = usage_of(self._ended) if self._request.counts_usage else None
        return ended(self._head, counts)

    def _choice(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        shown: dict[str, Any] | None = None,
    ) -> str:
        choice = {"index": number, "delta": delta, "finish_reason": finish, "logprobs": shown}
        return event({**self._head, "choices": [choice]})


async def events(
    pieces: AsyncGenerator[tuple[int, Partial], None], deltas: Chunks
) -> AsyncIterator[str]:
    """Wait for the first piece, so that what fails before it still has a status of its own; then all events."""
    try:
        first = await anext(pieces)
    except BaseException:
        await pieces.aclose()
        raise
    return _events(first, pieces, deltas)


async def _events(
    first: tuple[int, Partial], pieces: AsyncGenerator[tuple[int, Partial], None], deltas: Chunks
) -> AsyncGenerator[str, None]:
    async with aclosing(pieces):
        for line in deltas.take(*first):
            yield line
        try:
            async for piece in pieces:
                for line in deltas.take(*piece):
                    yield line
        except TriforgeError as error:
            _log.warning("a streamed answer broke off: %s", error.detail)
            yield event({"error": openai_error(error.kind, error.status, error.detail)})
            return
        for line in deltas.end():
            yield line


def usage_of(pieces: Sequence[Partial]) -> dict[str, Any]:
    """Token counts of the ended samples of one prompt."""
    return usage(
        max((piece.prompt_tokens for piece in pieces), default=0),
        sum(len(piece.ids) for piece in pieces),
        max((piece.cached_tokens for piece in pieces), default=0),
    )


def ended(first: dict[str, Any], counts: dict[str, Any] | None) -> list[str]:
    """The events after the last piece; `first` is what chunks begin with."""
    last = [] if counts is None else [event({**first, "choices": [], "usage": counts})]
    return [*last, "data: [DONE]\n\n"]


def event(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body)}\n\n"


def typed_event(kind: str, **body: Any) -> str:
    """One server-sent event with a type."""
    return f"event: {kind}\n" + event({"type": kind, **body})
