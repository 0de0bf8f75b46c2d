"""Images of requests: from `data:` URIs to pixels, and their places in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from triforge.errors import InputError
from triforge.types import ImageRef, PlacedImage
from triforge.vision.files import describe, from_data_uri
from triforge.vision.image_spec import ImageSpec, pixels_of


@dataclass(frozen=True, slots=True)
class Image:
    """An image in the form of the vision tower."""

    ref: ImageRef
    pixels: Tensor  # float32 [patches, values]
    grid: Tensor  # int64 [1, 3], patches in time, rows and columns


@dataclass(frozen=True, slots=True)
class Media:
    """The images of a prompt, and positions for all of its tokens."""

    places: tuple[PlacedImage, ...]
    images: tuple[Image, ...]  # one for each place
    table: Tensor  # int64 [3, tokens], the positions of the prompt
    behind: int  # the difference of position and number for tokens after the prompt

    def positions(self, numbers: Tensor) -> Tensor:
        """Return positions [3, N] of tokens, given their numbers int64 [N] in the sequence."""
        length = self.table.shape[1]
        inside = self.table[:, numbers.clamp(max=length - 1)]
        return torch.where(numbers < length, inside, numbers + self.behind)

    def keyed(self, tokens: list[int]) -> list[int]:
        """Replace the tokens of each image by a number of its content, for caches of prefixes."""
        found = list(tokens)
        for place in self.places:
            key = -1 - int(place.image.id.removeprefix("sha256:")[:15], 16)
            end = min(place.end, len(found))
            found[place.start : end] = [key] * (end - place.start)
        return found


def decode_images(vision: ImageSpec | None, uris: Sequence[Any]) -> list[Image]:
    """Decode `data:` URIs of PNG or JPEG images. Blocking, and slow for large ones."""
    if vision is None:
        raise InputError(
            "image_data: given to a model that sees no images, expected a vision model"
        )
    found = []
    for number, uri in enumerate(uris):
        where = f"image_data.{number}"
        if not isinstance(uri, str):
            raise InputError(f"{where} is {uri!r:.80}; expected a data: URI")
        data = from_data_uri(uri, where=where)
        ref = describe(data, where=where)
        pixels = torch.from_numpy(pixels_of(data, ref, vision))
        found.append(Image(ref, pixels, torch.tensor([[1, *vision.grid(ref)]])))
    return found


def place_images(
    vision: ImageSpec, ids: list[int], images: Sequence[Image]
) -> tuple[list[int], Media]:
    """Expand a prompt with one token an image to all of its tokens, and place its images."""
    whole, places = vision.expanded(ids, [image.ref for image in images])
    table, behind = vision.positions(len(whole), places)
    return whole, Media(places, tuple(images), torch.from_numpy(table), behind)
