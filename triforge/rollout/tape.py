"""A segment while an episode grows it, and what a turn shows to the model."""

from __future__ import annotations

from triforge.types import (
    GenerateOutput,
    GenerateReply,
    ImagePart,
    ImageRef,
    PlacedImage,
    Segment,
    TextPart,
    VersionSpan,
)


def content_of(text: str, images: tuple[ImageRef, ...]) -> str | tuple[TextPart | ImagePart, ...]:
    """Screenshots first, then the text, as vision-language models are used to it."""
    if not images:
        return text
    return (*(ImagePart(image=image) for image in images), TextPart(text=text))


class Tape:
    """A segment while it grows."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.images: tuple[PlacedImage, ...] = ()
        self._logprobs: list[float] = []
        self._versions: list[VersionSpan] = []

    def continues(self, prompt_ids: tuple[int, ...]) -> bool:
        """Whether a prompt begins with everything held."""
        return list(prompt_ids[: len(self.ids)]) == self.ids

    def add(self, reply: GenerateReply, output: GenerateOutput) -> tuple[int, int]:
        """Append the new part of a prompt and a sample; returns the sample's span."""
        seen = reply.prompt_ids[len(self.ids) :]
        self.images = reply.images
        self.ids.extend(seen)
        self._logprobs.extend([0.0] * len(seen))
        start = len(self.ids)
        self.ids.extend(output.ids)
        self._logprobs.extend(output.logprobs)
        self._versions.extend(
            VersionSpan(version=span.version, start=start + span.start, end=start + span.end)
            for span in output.versions
        )
        return start, len(self.ids)

    def segment(self) -> Segment:
        """The segment as it is now."""
        return Segment(
            ids=tuple(self.ids),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            images=self.images,
        )
