"""PNG files from raw pixels, and their size, without a dependency."""

from __future__ import annotations

import struct
import zlib
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_LEVEL: Final = 3  # screens are flat: a higher level costs twice the time for a tenth of the size


def encode(width: int, height: int, rgb: bytes) -> bytes:
    """Return a PNG file of `height` rows of `width` pixels, three bytes each (red, green, blue)."""
    row = 3 * width
    if len(rgb) != row * height:
        raise ValueError(f"{width}x{height} pixels have {row * height} bytes, given {len(rgb)}")
    rows = b"".join(b"\0" + rgb[i * row : (i + 1) * row] for i in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        SIGNATURE
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows, _LEVEL))
        + _chunk(b"IEND", b"")
    )


def size(image: bytes) -> tuple[int, int]:
    """Return width and height of a PNG file."""
    if len(image) < 33 or not image.startswith(SIGNATURE) or image[12:16] != b"IHDR":
        raise ValueError(f"not a PNG file: it begins with {image[:8]!r}")
    width, height = struct.unpack(">II", image[16:24])
    return int(width), int(height)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
