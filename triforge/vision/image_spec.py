"""What a model folder says about images: which tokens stand for them, how many, and at which positions.

Formulas: Qwen2-VL (arXiv 2409.12191), sections 2.1 and 2.2, as its image processor and M-RoPE of transformers compute
them; tests compare both. An image is scaled to a multiple of `patch * merge` a side within [min_pixels, max_pixels],
keeping its shape as far as possible, and cut into patches, `merge` x `merge` of which are one token. Positions have
three parts (time, row, column): text counts up in all of them; an image stands at one time, its tokens at their rows and
columns, and text goes on behind the larger side.
`pixels_of` needs Pillow, which the extra `vision` installs.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triforge.chat_template import read_json
from triforge.errors import ConfigError, InputError, WeightsError, install_command
from triforge.types import ImageRef, PlacedImage

KINDS = ("qwen2_vl", "qwen2_5_vl")  # model types whose images are understood here
_LONGEST_RATIO = 200
_DEFAULT_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
_DEFAULT_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEFAULT_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSpec:
    """How a vision-language model sees."""

    image: int  # id of one token of an image
    video: int
    start: int  # id of what stands before an image, and behind it
    end: int
    patch: int = 14  # pixels a side
    merge: int = 2  # patches a side of a token
    temporal: int = 2  # frames
    min_pixels: int = _DEFAULT_SIZE["shortest_edge"]
    max_pixels: int = _DEFAULT_SIZE["longest_edge"]
    mean: tuple[float, ...] = _DEFAULT_MEAN
    std: tuple[float, ...] = _DEFAULT_STD

    @classmethod
    def of_folder(cls, folder: Path) -> ImageSpec | None:
        """What `config.json` and `preprocessor_config.json` say; None for a model without images, WeightsError if either is wrong."""
        config = read_json(folder / "config.json")
        if config.get("model_type") not in KINDS:
            return None
        found = read_json(folder / "preprocessor_config.json")
        if not found:
            raise WeightsError(
                f"model folder {folder}: preprocessor_config.json is missing; a model that sees needs it"
            )
        size = dict(_DEFAULT_SIZE, **(found.get("size") or {}))
        try:
            vision = config["vision_config"]
            return cls(
                image=int(config["image_token_id"]),
                video=int(config["video_token_id"]),
                start=int(config["vision_start_token_id"]),
                end=int(config["vision_end_token_id"]),
                patch=int(vision.get("patch_size", 14)),
                merge=int(vision.get("spatial_merge_size", 2)),
                temporal=int(vision.get("temporal_patch_size", 2)),
                min_pixels=int(found.get("min_pixels") or size["shortest_edge"]),
                max_pixels=int(found.get("max_pixels") or size["longest_edge"]),
                mean=tuple(map(float, found.get("image_mean") or _DEFAULT_MEAN)),
                std=tuple(map(float, found.get("image_std") or _DEFAULT_STD)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WeightsError(
                f"model folder {folder}: its configuration of images lacks {error}"
            ) from error

    def grid(self, image: ImageRef) -> tuple[int, int]:
        """Rows and columns of patches of an image; InputError if one side is more than 200 times the other."""
        height, width, factor = image.height, image.width, self.patch * self.merge
        if max(height, width) > _LONGEST_RATIO * min(height, width):
            raise InputError(
                f"image {image.id}: given {width} x {height} pixels, expected sides of at most 1 to {_LONGEST_RATIO}"
            )
        tall, wide = (round(side / factor) * factor for side in (height, width))
        if tall * wide > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            tall, wide = (
                max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)
            )
        elif tall * wide < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            tall, wide = (math.ceil(side * grow / factor) * factor for side in (height, width))
        return tall // self.patch, wide // self.patch

    def tokens(self, image: ImageRef) -> int:
        """Tokens of an image."""
        rows, columns = self.grid(image)
        return rows * columns // self.merge**2

    def positions(
        self, length: int, images: Sequence[PlacedImage]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Positions of `length` tokens, int64 [3, length], and what a later text token adds to its number to get its own.

        InputError: an image has another number of tokens than this model sees in it, or is out of order.
        """
        found = np.empty((3, length), dtype=np.int64)
        at = position = 0
        for placed in images:
            if not at <= placed.start < placed.end <= length:
                raise InputError(f"image {placed.image.id}: stands at {placed.start}, out of order")
            rows, columns = (side // self.merge for side in self.grid(placed.image))
            if rows * columns != placed.end - placed.start:
                raise InputError(
                    f"image {placed.image.id}: given {placed.end - placed.start} tokens, expected the "
                    f"{rows * columns} that this model sees in it; was it rendered for another model?"
                )
            found[:, at : placed.start] = np.arange(placed.start - at) + position
            position += placed.start - at
            number = np.arange(rows * columns)
            found[:, placed.start : placed.end] = (
                np.stack([np.zeros_like(number), number // columns, number % columns]) + position
            )
            position += max(rows, columns)
            at = placed.end
        found[:, at:] = np.arange(length - at) + position
        return found, position - at

    def collapsed(self, ids: Sequence[int], images: Sequence[PlacedImage]) -> list[int]:
        """The ids with one token for each image, as engines take them."""
        found: list[int] = []
        at = 0
        for placed in images:
            found += [*ids[at : placed.start], self.image]
            at = placed.end
        return [*found, *ids[at:]]

    def expanded(
        self, ids: Sequence[int], images: Sequence[ImageRef], *, offset: int = 0
    ) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """The ids, with one token for each image, with as many as this model sees in it; the places count from `offset`."""
        count = sum(token == self.image for token in ids)
        if count != len(images):
            raise InputError(
                f"given {count} image tokens for {len(images)} images, expected as many"
            )
        waiting = iter(images)
        found: list[int] = []
        placed = []
        for token in ids:
            if token != self.image:
                found.append(token)
                continue
            image = next(waiting)
            start, size = len(found) + offset, self.tokens(image)
            found += [token] * size
            placed.append(PlacedImage(image=image, start=start, end=start + size))
        return found, tuple(placed)


def pixels_of(data: bytes, ref: ImageRef, image_spec: ImageSpec) -> npt.NDArray[np.float32]:
    """The patches of an image, float32 [rows * columns, 3 * temporal * patch * patch].

    Scaled bicubically as Pillow does it, and normalised. The patches of one token are neighbours; a still image is shown
    `temporal` times.
    """
    image = opened(data, ref)
    rows, columns = image_spec.grid(ref)
    size = (columns * image_spec.patch, rows * image_spec.patch)
    scaled = np.asarray(image.resize(size, _pillow().Resampling.BICUBIC), dtype=np.float32)
    unit = scaled * np.float32(1 / 255)
    normal = (unit - np.array(image_spec.mean, np.float32)) / np.array(image_spec.std, np.float32)
    m, p = image_spec.merge, image_spec.patch
    cut = normal.reshape(rows // m, m, p, columns // m, m, p, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    shown = np.broadcast_to(
        cut[:, :, :, :, :, None], (*cut.shape[:5], image_spec.temporal, *cut.shape[5:])
    )
    return np.ascontiguousarray(shown, dtype=np.float32).reshape(rows * columns, -1)


def opened(data: bytes, ref: ImageRef) -> Any:
    """An image as Pillow holds it, in red, green and blue; InputError if it cannot be decoded or is of another size."""
    pillow = _pillow()
    try:
        image = pillow.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        if image.size != (ref.width, ref.height):
            raise InputError(
                f"image {ref.id}: given {image.size} pixels, expected {(ref.width, ref.height)}"
            )
        return image.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"image {ref.id}: cannot be decoded: {error}") from error


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ConfigError(f"images need Pillow: {install_command('vision')}") from None
