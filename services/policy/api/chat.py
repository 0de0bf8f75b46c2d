"""Chat in OpenAI's dialect, to which the other dialects of chat are translated.

Images are `image_url` parts with a `data:` URI, and go no further than the engine. For tools see `services.policy.api.tools`
and `services.policy.api.calls`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from services.policy.api.calls.parser import CallParser
from services.policy.api.calls.reply import ParsedReply
from services.policy.api.openai import OpenAIDialect, OpenAIRequest, Strict, Tokens
from services.policy.api.tools import PastCall, Tool, call_schema
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
    detail: Literal["auto"] = "auto"


class _Image(Strict):
    type: Literal["image_url"]
    image_url: _Url

    def ref(self, pictures: dict[str, bytes]) -> ImageRef:
        data = from_data_uri(self.image_url.url, where="image_url")
        image = describe(data, where="image_url")
        pictures[image.id] = data
        return image


class _ChatMessage(Strict):
    # Fields of OpenAI's answers that clients send back; the last one is litellm's.
    unsupported = ("refusal", "audio", "function_call", "annotations", "provider_specific_fields")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Annotated[_Text | _Image, Field(discriminator="type")]] | None = None
    tool_calls: tuple[PastCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""  # of the tool that answered

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
        return [_Text.model_construct(type="text", text=self.content or "")]

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


class ChatRequest(OpenAIRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[_ChatMessage], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    response_format: dict[str, Any] | None = None
    modalities: tuple[Literal["text"], ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True

    @classmethod
    def translated(cls, body: dict[str, Any]) -> Self:
        """Return the request that another dialect's request means."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise input_error(error) from None

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model is shown."""
        return [] if self.tool_choice == "none" else [tool.model_dump() for tool in self.tools]

    def parser(self, renderer: Renderer) -> CallParser:
        offered = self.tools if self.offered_tools else ()
        tools = {tool.function.name: tool.parameters for tool in offered}
        return CallParser.of(renderer, tools, forced=bool(self._forced()))

    def _forced(self) -> Sequence[Tool]:
        """Return the tools of which the model must call one; none lets it choose."""
        match self.tool_choice:
            case "auto" | "none":
                return []
            case "required":
                forced = self.tools
            case {"type": "function", "function": {"name": name, **more}, **rest} if (
                not more | rest
            ):
                forced = tuple(tool for tool in self.tools if tool.function.name == name)
            case _:
                forced = ()
        if not forced:
            names = ", ".join(tool.function.name for tool in self.tools) or "none is given"
            raise InputError(f"tool_choice: expected one of the tools: {names}")
        return forced

    def _schema(self) -> str | None:
        """Return the JSON schema of the answer that `response_format` asks for."""
        match self.response_format:
            case {
                "type": "json_schema",
                "json_schema": {"schema": dict(schema), **more},
                **rest,
            } if not rest and more.keys() <= {"name", "description", "strict"}:
                return json.dumps(schema)
            case {"type": "json_object", **rest} if not any(rest.values()):
                return '{"type": "object"}'
            case {"type": "text", **rest} if not any(rest.values()):
                return None
            case None:
                return None
        raise InputError(
            "response_format: expected the type text, json_object, or json_schema with json_schema: {schema: {...}}"
        )

    def extras(self) -> Extras:
        return replace(super().extras(), top_logprobs=self.top_logprobs)

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
        forced, schema = self._forced(), self._schema()
        if self.tools and not self.parallel_tool_calls and not forced:
            raise InputError(
                "parallel_tool_calls = false: not supported by this endpoint while the model chooses; leave out"
            )
        if self.top_logprobs and not self.logprobs:
            raise InputError("top_logprobs: given without logprobs = true, which it needs")
        if sum((schema is not None, self.regex is not None, bool(forced))) > 1:
            raise InputError(
                "regex, response_format and a tool that must be called exclude each other; give one"
            )
        schema = call_schema(forced) if forced else schema
        sampling = self.sampling(max_new_tokens=self.longest, json_schema=schema)
        return GenerateRequest(n=self.n, sampling=sampling, affinity=self.affinity)

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
                system = self.messages[0].role in ("system", "developer")
                renderer.demand_turns(system=system, tools=bool(self.offered_tools))
                answer = self.messages[held - 1].for_template()
                return renderer.extend_with_tools(prefix, messages, self.offered_tools, answer)
            return renderer.render_with_tools(messages, self.offered_tools)
        except (RecursionError, ValueError) as error:  # pydantic raises either
            if isinstance(error, TriforgeError):
                raise
            raise InputError("tools: given ones that are nested too deep") from None


class ChatDialect(OpenAIDialect[ChatRequest]):
    """Answers as `chat.completion` objects."""

    object, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def _choice(self, number: int, output: GenerateOutput, tops: Tops) -> dict[str, Any]:
        reply = self._parse(output, number)
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
            found = self._bytes(token)  # a part of a character may be a token
            text = found.decode(errors="replace")
            return {"token": text, "logprob": logprob, "bytes": list(found)}

        rows = zip(output.ids, output.logprobs, tops or [()] * len(output.ids), strict=True)
        content = [
            {**entry(token, logprob), "top_logprobs": [entry(other, at) for at, other in row]}
            for token, logprob, row in list(rows)[first:]
        ]
        return {"content": content}


# ---- parts of a translation ----


def tool_part(name: str, description: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form."""
    function = {"name": name, "parameters": parameters}
    return {"type": "function", "function": function | ({"description": description} if description else {})}  # fmt: skip


def call_part(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool in OpenAI's form."""
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def image_part(url: str) -> dict[str, Any]:
    """Return an image in OpenAI's form."""
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(parts: Iterable[dict[str, Any] | str]) -> Any:
    """Join texts; return parts where there are images."""
    given = list(parts)
    if any(isinstance(part, dict) for part in given):
        return [{"type": "text", "text": p} if isinstance(p, str) else p for p in given]
    return "".join(str(part) for part in given)
