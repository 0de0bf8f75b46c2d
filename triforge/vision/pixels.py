"""An image file as the numbers that the vision tower takes. Needs Pillow, which the extra `vision` installs."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from triforge.errors import ConfigError, InputError
from triforge.types import ImageRef
from triforge.vision.sight import Sight


def pixels_of(data: bytes, ref: ImageRef, sight: Sight) -> npt.NDArray[np.float32]:
    """The patches of an image, float32 [rows * columns, 3 * temporal * patch * patch].

    Scaled bicubically as Pillow does it, with `sight`'s mean taken away and divided by its deviation. The patches of one
    token are neighbours; a still image is shown `temporal` times.

    Raises:
        ConfigError: Pillow is not installed.
        InputError: the file cannot be decoded, or is not what `ref` says.
    """
    pillow = _pillow()
    try:
        image = pillow.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        if image.size != (ref.width, ref.height):
            raise InputError(
                f"image {ref.id}: given {image.size} pixels, expected {(ref.width, ref.height)}"
            )
        image = image.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"image {ref.id}: cannot be decoded: {error}") from error
    rows, columns = sight.grid(ref)
    size = (columns * sight.patch, rows * sight.patch)
    scaled = np.asarray(image.resize(size, pillow.Resampling.BICUBIC), dtype=np.float32)
    unit = scaled * np.float32(1 / 255)
    normal = (unit - np.array(sight.mean, np.float32)) / np.array(sight.std, np.float32)
    m, p = sight.merge, sight.patch
    cut = normal.reshape(rows // m, m, p, columns // m, m, p, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    shown = np.broadcast_to(
        cut[:, :, :, :, :, None], (*cut.shape[:5], sight.temporal, *cut.shape[5:])
    )
    return np.ascontiguousarray(shown, dtype=np.float32).reshape(rows * columns, -1)


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ConfigError("images need Pillow: pip install 'triforge[vision]'") from None
