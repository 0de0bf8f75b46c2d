"""Chat in OpenAI's dialect, to which the other dialects of chat are translated.

Images are `image_url` parts with a `data:` URI, and go no further than the engine. For tools see `services.policy.api.tools`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from services.policy.api.openai import OpenAIDialect, OpenAIRequest, Strict, Tokens
from services.policy.api.tools import CallParser, ParsedReply, PastCall, Tool, call_schema
from services.policy.engines.protocol import Extras, Partial, Tops
from triforge.errors import InputError, TriforgeError
from triforge.rendering import Renderer
from triforge.types import GenerateOutput, GenerateRequest, ImageRef, PlacedImage
from triforge.vision.files import describe, from_data_uri
from triforge.web.problems import input_error


class _Text(Strict):
    type: Literal["text"]
    text: str


class _Url(Strict):
    url: str
    detail: Literal["auto"] | None = None


class _Image(Strict):
    type: Literal["image_url"]
    image_url: _Url

    def ref(self, pictures: dict[str, bytes]) -> ImageRef:
        data = from_data_uri(self.image_url.url, where="image_url")
        image = describe(data, where="image_url")
        pictures[image.id] = data
        return image


class _ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Annotated[_Text | _Image, Field(discriminator="type")]] | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None  # of the tool that answered
    # Fields of OpenAI's answers that clients send back.
    refusal: None = None
    audio: None = None
    function_call: None = None
    provider_specific_fields: dict[str, None] | None = None  # of litellm
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name and self.role != "tool":
            raise ValueError(f"name: given by {self.role}, expected of a tool only")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: given by {self.role}, expected of an assistant only")
        if self.content is None and not self.tool_calls:
            raise ValueError("content: given none, expected text")
        return self

    def _parts(self) -> list[_Text | _Image]:
        if isinstance(self.content, list):
            return self.content
        return [_Text(type="text", text=self.content or "")]

    def for_template(self, *, with_images: bool = False) -> dict[str, Any]:
        """Return it as templates take it, with calls and results of tools, and if asked with the places of images."""
        role = "system" if self.role == "developer" else self.role
        texts = [part.text for part in self._parts() if isinstance(part, _Text)]
        message: dict[str, Any] = {"role": role, "content": "".join(texts)}
        if with_images and self.has_images:
            message["content"] = [
                part.model_dump() if isinstance(part, _Text) else {"type": "image"}
                for part in self._parts()
            ]
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message | ({"tool_call_id": self.tool_call_id} if self.tool_call_id else {})

    @property
    def has_images(self) -> bool:
        return any(isinstance(part, _Image) for part in self._parts())

    def images(self, pictures: dict[str, bytes]) -> tuple[ImageRef, ...]:
        return tuple(part.ref(pictures) for part in self._parts() if isinstance(part, _Image))


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
        if self.json_schema is not None:
            return json.dumps(self.json_schema.schema_)
        return '{"type": "object"}' if self.type == "json_object" else None


class _Named(Strict):
    name: str


class _Choice(Strict):
    type: Literal["function"]
    function: _Named


class ChatRequest(OpenAIRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[_ChatMessage], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: _ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Choice | None = None
    parallel_tool_calls: bool | None = None

    @classmethod
    def translated(cls, body: dict[str, Any]) -> Self:
        """Return the request that another dialect's request means."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise input_error(error) from None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is shown."""
        return [] if self.tool_choice == "none" else [t.model_dump() for t in self.tools or []]

    @property
    def _forced(self) -> list[Tool]:
        """The tools of which the model must call one; none lets it choose."""
        if isinstance(self.tool_choice, _Choice):
            name = self.tool_choice.function.name
            return [tool for tool in self.tools or [] if tool.function.name == name]
        return (self.tools or []) if self.tool_choice == "required" else []

    @property
    def parser(self) -> CallParser:
        names = [tool["function"]["name"] for tool in self.offered_tools]
        return CallParser(names, forced=bool(self._forced))

    def extras(self) -> Extras:
        return replace(super().extras(), top_logprobs=self.top_logprobs or 0)

    @property
    def longest(self) -> int | None:
        """The most tokens of an answer."""
        return self.max_completion_tokens or self.max_tokens

    def request(self, renderer: Renderer, pictures: dict[str, bytes]) -> GenerateRequest:
        """Return our own request; the bytes of its images go to `pictures`, by id."""
        request = self.without_prompt()
        ids, placed = self.prompt(renderer, self.images(pictures))
        return request.model_copy(update={"prefix_ids": tuple(ids), "prefix_images": placed})

    def without_prompt(self) -> GenerateRequest:
        """Return our own request without its prompt."""
        forced = self._forced
        self._check_tools(forced)
        if self.top_logprobs and not self.logprobs:
            raise InputError("top_logprobs: given without logprobs = true, which it needs")
        schema = self.response_format.constraint() if self.response_format else None
        if sum((schema is not None, self.regex is not None, bool(forced))) > 1:
            raise InputError(
                "regex, response_format and a tool that must be called exclude each other; give one"
            )
        sampling = self.sampling(
            max_new_tokens=self.longest, json_schema=call_schema(forced) if forced else schema
        )
        return GenerateRequest(n=self.n or 1, sampling=sampling, affinity=self.affinity)

    def _check_tools(self, forced: Sequence[Tool]) -> None:
        if self.tools and self.parallel_tool_calls is False and not forced:
            raise InputError(
                "parallel_tool_calls = false: not supported by this endpoint while the model chooses; leave out"
            )
        if not forced and self.tool_choice not in (None, "auto", "none"):
            names = ", ".join(self.parser.names) or "none is given"
            raise InputError(f"tool_choice: expected one of the tools: {names}")

    @property
    def has_images(self) -> bool:
        """Whether any message has images."""
        return any(message.has_images for message in self.messages)

    def images(self, pictures: dict[str, bytes]) -> list[tuple[ImageRef, ...]]:
        """Return the images of each message; their bytes go to `pictures`, by id."""
        return [message.images(pictures) for message in self.messages]

    def prompt(
        self,
        renderer: Renderer,
        images: Sequence[Sequence[ImageRef]],
        prefix: Sequence[int] = (),
        seen: Sequence[PlacedImage] = (),
        held: int = 0,
    ) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """Return the ids of the conversation, and its images with their places.

        The ids begin with `prefix`, which holds the first `held` messages and the images that it has `seen`.
        """
        if not self.has_images:
            return self._ids(renderer, prefix, held), ()
        new = [image for one in images[held:] for image in one]
        return renderer.seeing(prefix, seen, new, lambda ids: self._ids(renderer, ids, held))

    def _ids(self, renderer: Renderer, prefix: Sequence[int], held: int) -> list[int]:
        messages = [message.for_template(with_images=True) for message in self.messages[held:]]
        try:
            if prefix:
                return renderer.extend_with_tools(prefix, messages, self.offered_tools)
            return renderer.render_with_tools(messages, self.offered_tools)
        except (RecursionError, ValueError) as error:  # pydantic raises either
            if isinstance(error, TriforgeError):
                raise
            raise InputError("tools: given ones that are nested too deep") from None


class ChatDialect(OpenAIDialect[ChatRequest]):
    """Answers as `chat.completion` objects."""

    object, chunk = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    def _choice(self, number: int, output: GenerateOutput, tops: Tops) -> dict[str, Any]:
        reply = self._parse(output.text, number)
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [call.openai() for call in reply.calls]
        return {
            "message": message,
            "finish_reason": reply.finish(output.finish),
            "logprobs": self._logprobs(output, tops),
        }

    def _begin(self, number: int, piece: Partial) -> Iterable[str]:
        yield self._chunk(number, delta={"role": "assistant", "content": ""})

    def _text(self, number: int, piece: Partial, new: str) -> Iterable[str]:
        logprobs = self._logprobs(piece, piece.tops, self._sent[number][1])
        yield self._chunk(number, delta={"content": new}, logprobs=logprobs)

    def _end(self, number: int, piece: Partial, reply: ParsedReply) -> Iterable[str]:
        if reply.calls:
            calls = [{"index": i, **call.openai()} for i, call in enumerate(reply.calls)]
            yield self._chunk(number, delta={"tool_calls": calls})
        self._note_version(piece)
        yield self._chunk(number, delta={}, finish=reply.finish(str(piece.finish)))

    def _logprobs(
        self, output: GenerateOutput | Partial, tops: Tops, first: int = 0
    ) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens from `first` on."""
        if not self.body.logprobs:
            return None

        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self._token(token)
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        rows = zip(output.ids, output.logprobs, tops or [()] * len(output.ids), strict=True)
        content = [
            {**entry(token, logprob), "top_logprobs": [entry(other, at) for at, other in row]}
            for token, logprob, row in list(rows)[first:]
        ]
        return {"content": content}
