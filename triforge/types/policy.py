"""Requests to a policy service and its replies."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.config import Sampling
from triforge.types.base import Extra, Message


class ImageRef(Message):
    """A screenshot by its content. Its bytes lie in the artifact store and are part of no message.

    `id` is `sha256:` and the digest of the file, `size` its bytes, `width` and `height` are pixels.
    """

    id: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    media_type: Literal["image/png", "image/jpeg"]
    size: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]
    height: Annotated[int, Field(ge=1)]


class TextPart(Message):
    """Text between images. Part of `ChatMessage`."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(Message):
    """An image between texts. Part of `ChatMessage`."""

    type: Literal["image"] = "image"
    image: ImageRef


class PlacedImage(Message):
    """An image and its tokens [start, end) among a sequence of ids. Other tokens with the image's id are text."""

    image: ImageRef
    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=1)]


class ChatMessage(Message):
    """One chat message. Produced by: environments, prompts. Consumed by: policy service.

    `content` is text, or text and images in the order of the prompt.
    """

    role: Literal["system", "user", "assistant"]
    content: str | tuple[Annotated[TextPart | ImagePart, Field(discriminator="type")], ...]

    @property
    def text(self) -> str:
        """All text, without the images."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImageRef, ...]:
        """All images, in order."""
        if isinstance(self.content, str):
            return ()
        return tuple(part.image for part in self.content if isinstance(part, ImagePart))


class VersionSpan(Message):
    """The weight version that sampled the tokens [start, end) of an output."""

    version: int
    start: int
    end: int


class GenerateRequest(Message):
    """A request for n samples of one prompt. Produced by: rollout, judge, rewriter. Consumed by: policy service.

    `prefix_ids` are the ids of the last reply, unchanged, with the `prefix_images` in them; only `messages` are rendered and
    appended. `after_system`: the prefix begins with a system message, which some chat templates cannot keep there. The last
    `begun` ids of the prefix begin the response: the text of a sample begins with theirs. With `prompt_logprobs` nothing is sampled: the reply scores the prompt. `model` chooses among several policy services; empty is
    the caller's default.
    """

    prefix_ids: Annotated[tuple[int, ...], Field(fail_fast=True)] = ()
    prefix_images: Annotated[tuple[PlacedImage, ...], Field(fail_fast=True)] = ()
    messages: Annotated[tuple[ChatMessage, ...], Field(fail_fast=True)] = ()
    after_system: bool = False
    n: Annotated[int, Field(ge=1, le=64)] = 1
    sampling: Sampling = Sampling()
    affinity: str = ""
    prompt_logprobs: bool = False
    model: Annotated[str, Field(max_length=16)] = ""
    begun: Annotated[int, Field(ge=0)] = 0


class GenerateOutput(Message):
    """One sample.

    `ids` and `logprobs` have the same length; `logprobs` are those of the sampled distribution at the request's
    temperature over the full softmax. `finish` is the reason why the sample ended.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: Literal["stop", "length", "abort"] = "stop"


class GenerateReply(Message):
    """The reply to a `GenerateRequest`. Produced by: policy service. Consumed by: the caller.

    `prompt_ids` is the whole prompt, prefix included, and `images` are all images in it. `prompt_logprobs`, where requested, are
    those of all its ids but the first, at temperature 1, by the weights of `prompt_version`; `outputs` is empty then.
    `extra` has the fields of methods that select the output.
    """

    prompt_ids: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    outputs: tuple[GenerateOutput, ...]
    cached_tokens: int = 0
    prompt_logprobs: tuple[float, ...] = ()
    prompt_version: int | None = None
    extra: Extra = Field(default_factory=dict)
