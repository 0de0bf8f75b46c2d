"""Small image files for tests, written without an image library."""

from __future__ import annotations

import struct
import zlib


def png(
    width: int = 32, height: int = 32, *, colour: tuple[int, int, int] = (200, 30, 30)
) -> bytes:
    """Return a PNG file: a gradient over one colour, so that neighbouring pixels differ."""
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            rows += bytes((c + 3 * x + 5 * y) % 256 for c in colour)
    return png_of(struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(bytes(rows)))


def png_of(header: bytes, pixels: bytes) -> bytes:
    """Return a PNG file of a header and compressed pixels, which need not fit each other."""
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
