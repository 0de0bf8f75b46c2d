"""Image files as bytes: their type and size, found without decoding a possible decompression bomb.

A PNG's chunks are read and its pixels inflated, at most as far as its header promises. A JPEG's segments are read, but not
its pixels. Formats: the PNG specification, third edition; ITU-T T.81, annex B.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
import zlib
from typing import Literal

from triforge.errors import InputError
from triforge.types import ImageRef

MAX_BYTES = 16 * 2**20
MAX_PIXELS = 2**24  # 4096 x 4096
MAX_SIDE = 16384

_PIECE = 2**20
_PNG = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_DATA_URI = re.compile(r"data:image/(png|jpeg|jpg);base64,([A-Za-z0-9+/=\s]+)", re.ASCII)
_MediaType = Literal["image/png", "image/jpeg"]


def digest_of(data: bytes) -> str:
    """Return the id of an image: `sha256:` and the digest of its bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def describe(data: bytes, *, where: str = "image") -> ImageRef:
    """Describe an image file by its content; raise InputError if it is no whole PNG or JPEG, or too large."""
    if len(data) > MAX_BYTES:
        raise InputError(
            f"{where}: given {len(data)} bytes, expected at most {MAX_BYTES}; use smaller screenshots"
        )
    media_type: _MediaType
    if data.startswith(_PNG):
        media_type, (width, height) = "image/png", _png(data, where)
    elif data.startswith(b"\xff\xd8"):
        media_type, (width, height) = "image/jpeg", _jpeg(data, where)
    else:
        raise InputError(f"{where}: given {data[:8]!r}..., expected a PNG or JPEG file")
    return ImageRef(
        id=digest_of(data), media_type=media_type, size=len(data), width=width, height=height
    )


def data_uri(ref: ImageRef, data: bytes) -> str:
    """Return an image as a `data:` URI."""
    return f"data:{ref.media_type};base64,{base64.b64encode(data).decode('ascii')}"


def from_data_uri(text: str, *, where: str = "image") -> bytes:
    """Return the bytes of a `data:` URI with a PNG or JPEG in base64; raise InputError if it is none."""
    match = _DATA_URI.fullmatch(text) if len(text) <= 2 * MAX_BYTES else None
    if match is None:
        raise InputError(
            f"{where}: given {text[:40]!r}..., expected data:image/png;base64,... or data:image/jpeg;base64,... of at "
            f"most {MAX_BYTES} bytes"
        )
    try:
        return base64.b64decode(match.group(2), validate=False)
    except binascii.Error as error:
        raise InputError(f"{where}: not base64: {error}") from error


def _bounded(width: int, height: int, where: str) -> tuple[int, int]:
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise InputError(
            f"{where}: given {width} x {height} pixels, expected 1 to {MAX_SIDE} a side and at most {MAX_PIXELS} in all"
        )
    return width, height


def _broken(where: str, why: str) -> InputError:
    return InputError(f"{where}: {why}; is the file whole?")


def _png(data: bytes, where: str) -> tuple[int, int]:
    at, kind, body = len(_PNG), b"", b""
    header = b""
    pixels = []
    while kind != b"IEND":
        if at + 12 > len(data):
            raise _broken(where, "the PNG ends in the middle")
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        crc = data[at + 8 + length : at + 12 + length]
        if len(body) != length or crc != struct.pack(">I", zlib.crc32(kind + body)):
            raise _broken(where, f"chunk {kind!r} of the PNG is damaged")
        if not header and kind != b"IHDR":
            raise _broken(where, "the PNG has no header")
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            pixels.append(body)
        at += 12 + length
    return _inflated(header, b"".join(pixels), where)


def _inflated(header: bytes, pixels: bytes, where: str) -> tuple[int, int]:
    """Return width and height, after a check that there are as many pixels as the header states."""
    if len(header) != 13:
        raise _broken(where, "the header of the PNG is damaged")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    _bounded(width, height, where)
    if colour not in _CHANNELS or depth not in (1, 2, 4, 8, 16) or interlaced:
        raise InputError(
            f"{where}: given a PNG of an unknown or interlaced kind, expected a plain one"
        )
    expected = height * (1 + (width * _CHANNELS[colour] * depth + 7) // 8)
    size, inflater, rest = 0, zlib.decompressobj(), pixels
    try:
        # in pieces, so that little of it is in memory at once
        while rest and size <= expected:
            size += len(inflater.decompress(rest, min(_PIECE, expected + 1 - size)))
            rest = inflater.unconsumed_tail
    except zlib.error as error:
        raise _broken(where, f"the pixels of the PNG are damaged ({error})") from error
    if size != expected:
        raise _broken(where, f"the PNG has {size} bytes of pixels, expected {expected}")
    return width, height


def _jpeg(data: bytes, where: str) -> tuple[int, int]:
    at, size = 2, (0, 0)
    while True:
        if at + 4 > len(data) or data[at] != 0xFF:
            raise _broken(where, "the segments of the JPEG are damaged")
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes
            at += 1
        elif marker in _NO_LENGTH:
            at += 2
        else:
            (length,) = struct.unpack(">H", data[at + 2 : at + 4])
            if marker in _FRAMES and at + 9 <= len(data):
                height, width = struct.unpack(">HH", data[at + 5 : at + 9])
                size = _bounded(width, height, where)
            at += 2 + length
            if marker == 0xDA:  # the pixels begin
                break
    if size == (0, 0) or b"\xff\xd9" not in data[at:]:
        raise _broken(where, "the JPEG has no frame or no end")
    return size
