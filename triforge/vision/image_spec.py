"""The image options of a model folder: the tokens of an image, their number and their positions.

Formulas: Qwen2-VL (arXiv 2409.12191), sections 2.1 and 2.2, as its image processor and M-RoPE of transformers compute
them; tests compare both. An image is scaled to a multiple of `patch * merge` a side within [min_pixels, max_pixels],
keeping its shape as far as possible, and cut into patches, `merge` x `merge` of which are one token. Positions have
three parts (time, row, column): text counts up in all of them; an image has one time, its tokens their rows and columns,
and text continues after the larger side.
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

KINDS = ("qwen2_vl", "qwen2_5_vl")  # model types with supported images
_LONGEST_RATIO = 200
_DEFAULT_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
_DEFAULT_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEFAULT_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSpec:
    """The image options of a vision-language model."""

    image: int  # id of one token of an image
    video: int
    start: int  # id of the token before an image
    end: int  # id of the token after an image
    patch: int = 14  # pixels a side
    merge: int = 2  # patches a side of a token
    temporal: int = 2  # frames
    min_pixels: int = _DEFAULT_SIZE["shortest_edge"]
    max_pixels: int = _DEFAULT_SIZE["longest_edge"]
    mean: tuple[float, ...] = _DEFAULT_MEAN
    std: tuple[float, ...] = _DEFAULT_STD

    @classmethod
    def of_folder(cls, folder: Path) -> ImageSpec | None:
        """Read `config.json` and `preprocessor_config.json`; None for a model without images, WeightsError for a bad file."""
        config = read_json(folder / "config.json")
        if config.get("model_type") not in KINDS:
            return None
        processor = read_json(folder / "preprocessor_config.json")
        if not processor:
            raise WeightsError(
                f"model folder {folder}: preprocessor_config.json is missing, which a model with images needs"
            )
        size = dict(_DEFAULT_SIZE, **(processor.get("size") or {}))
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
                min_pixels=int(processor.get("min_pixels") or size["shortest_edge"]),
                max_pixels=int(processor.get("max_pixels") or size["longest_edge"]),
                mean=tuple(map(float, processor.get("image_mean") or _DEFAULT_MEAN)),
                std=tuple(map(float, processor.get("image_std") or _DEFAULT_STD)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WeightsError(
                f"model folder {folder}: its configuration of images lacks {error}"
            ) from error

    def grid(self, image: ImageRef) -> tuple[int, int]:
        """Return rows and columns of patches of an image; raise InputError if one side is more than 200 times the other."""
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
        """Return the number of tokens of an image."""
        rows, columns = self.grid(image)
        return rows * columns // self.merge**2

    def positions(
        self, length: int, images: Sequence[PlacedImage]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return the positions of `length` tokens, int64 [3, length], and the offset of the positions of later text tokens.

        Raises:
            InputError: an image has another number of tokens than in this model, or is out of order.
        """
        positions = np.empty((3, length), dtype=np.int64)
        at = position = 0
        for placed in images:
            if not at <= placed.start < placed.end <= length:
                raise InputError(f"image {placed.image.id}: begins at {placed.start}, out of order")
            rows, columns = (side // self.merge for side in self.grid(placed.image))
            if rows * columns != placed.end - placed.start:
                raise InputError(
                    f"image {placed.image.id}: given {placed.end - placed.start} tokens, expected the "
                    f"{rows * columns} of this model; was it rendered for another model?"
                )
            positions[:, at : placed.start] = np.arange(placed.start - at) + position
            position += placed.start - at
            number = np.arange(rows * columns)
            positions[:, placed.start : placed.end] = (
                np.stack([np.zeros_like(number), number // columns, number % columns]) + position
            )
            position += max(rows, columns)
            at = placed.end
        positions[:, at:] = np.arange(length - at) + position
        return positions, position - at

    def collapsed(self, ids: Sequence[int], images: Sequence[PlacedImage]) -> list[int]:
        """Return the ids with one token for each image, the form that engines expect."""
        short: list[int] = []
        at = 0
        for placed in images:
            short += [*ids[at : placed.start], self.image]
            at = placed.end
        return [*short, *ids[at:]]

    def expanded(
        self, ids: Sequence[int], images: Sequence[ImageRef], *, offset: int = 0
    ) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """Replace the one token of each image by as many as the image has in this model; places count from `offset`."""
        count = sum(token == self.image for token in ids)
        if count != len(images):
            raise InputError(
                f"given {count} image tokens for {len(images)} images, expected as many"
            )
        waiting = iter(images)
        whole: list[int] = []
        placed = []
        for token in ids:
            if token != self.image:
                whole.append(token)
                continue
            image = next(waiting)
            start, size = len(whole) + offset, self.tokens(image)
            whole += [token] * size
            placed.append(PlacedImage(image=image, start=start, end=start + size))
        return whole, tuple(placed)


def pixels_of(data: bytes, ref: ImageRef, image_spec: ImageSpec) -> npt.NDArray[np.float32]:
    """Return the patches of an image, float32 [rows * columns, 3 * temporal * patch * patch].

    The image is scaled by Pillow's bicubic filter and normalised. The patches of one token are neighbours; a still image
    is repeated `temporal` times.
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
    """Open an image with Pillow as RGB; raise InputError if it cannot be decoded or has another size."""
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
