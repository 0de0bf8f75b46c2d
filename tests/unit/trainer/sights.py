"""Rows of a tiny model that sees: words and images, some of them trained on."""

from __future__ import annotations

from triforge.types import ImageRef, PlacedImage, TrainRow

USER, ASSISTANT, BEGIN, STOP, PAD, GO = 4, 5, 6, 7, 8, 10
WORDS = ("go", "see", "cup")


def row(images: list[ImageRef], sampled: int, *, after: tuple[ImageRef, ...] = ()) -> TrainRow:
    """A prompt with images, `sampled` tokens that are trained on, and images after which no token is scored."""
    ids, places = [USER], []
    for number, image in enumerate([*images, *after]):
        if number == len(images):
            ids += [ASSISTANT, *[GO] * sampled]
        places.append(PlacedImage(image=image, start=len(ids) + 1, end=len(ids) + 7))
        ids += [BEGIN, *[PAD] * 6, STOP]
    ids += [] if after else [ASSISTANT, *[GO] * sampled]
    start = ids.index(ASSISTANT) + 1
    scored = [start <= n < start + sampled for n in range(len(ids))]
    return TrainRow(
        key="k", ids=tuple(ids), logprobs=(0.0,) * len(ids), advantages=(0.0,) * len(ids),
        weights=tuple(map(float, scored)), versions=(0,) * len(ids), task_id="t",
        images=tuple(places),
    )  # fmt: skip
