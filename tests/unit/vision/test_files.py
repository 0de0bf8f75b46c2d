"""What is taken for a screenshot, and what is not."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from pathlib import Path

import pytest

from triforge.errors import InputError, NotFoundError, StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore, image_name
from triforge.testing.pictures import png, png_of
from triforge.vision.files import MAX_BYTES, data_uri, describe, from_data_uri

Image = pytest.importorskip("PIL.Image", reason="pip install -c constraints.txt -e '.[vision]'")


def drawn(kind: str, **options: object) -> bytes:
    sink = io.BytesIO()
    Image.open(io.BytesIO(png(48, 20))).save(sink, kind, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(48, 20), "image/png"),
        (drawn("PNG", optimize=True), "image/png"),
        (drawn("JPEG"), "image/jpeg"),
        (drawn("JPEG", progressive=True), "image/jpeg"),
    ],
)
def test_an_image_is_described_by_its_content(data: bytes, media_type: str) -> None:
    ref = describe(data)
    assert (ref.media_type, ref.width, ref.height, ref.size) == (media_type, 48, 20, len(data))
    assert ref.id == "sha256:" + hashlib.sha256(data).hexdigest()


def header(width: int, height: int, interlaced: int = 0) -> bytes:
    return struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlaced)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "expected a PNG or JPEG"),
        (b"GIF89a" + bytes(40), "expected a PNG or JPEG"),
        (png()[:-20], "is the file whole"),
        (flipped(png(), 60), "is damaged"),
        (png_of(header(0, 4), zlib.compress(b"")), "expected 1 to"),
        (png_of(header(100_000, 1), zlib.compress(bytes(300_001))), "expected 1 to"),
        (png_of(header(2**31, 2**31), zlib.compress(b"")), "expected 1 to"),
        (png_of(header(4, 4), zlib.compress(bytes(30))), "30 bytes of pixels, expected 52"),
        # two megabytes behind a header of 4 x 4: never inflated beyond what the header promises
        (png_of(header(4, 4), zlib.compress(bytes(2**21))), "53 bytes of pixels, expected 52"),
        (png_of(header(4, 4), b"not zlib"), "pixels of the PNG are damaged"),
        (png_of(header(4, 4, interlaced=1), zlib.compress(bytes(52))), "interlaced"),
        (png_of(b"short", zlib.compress(bytes(52))), "header of the PNG is damaged"),
        (b"\xff\xd8\xff\xe0" + bytes(30), "JPEG"),
        (b"\xff\xd8\xff\xd9", "JPEG"),
        (drawn("JPEG")[:-30], "no frame or no end"),
        (bytes(MAX_BYTES + 1), "expected at most"),
    ],
)
def test_what_is_no_whole_image_of_a_sane_size_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        describe(data)


def test_a_data_uri_gives_its_bytes_back() -> None:
    data = png()
    assert from_data_uri(data_uri(describe(data), data)) == data
    for text in ("http://host/image.png", "data:image/gif;base64,AAAA", "data:image/png;base64,A"):
        with pytest.raises(InputError):
            from_data_uri(text)


async def test_an_image_is_written_once_and_checked_when_read(tmp_path: Path) -> None:
    artifacts = ArtifactStore(str(tmp_path))
    store = ImageStore(artifacts)
    data = png()
    ref = await store.put(data)
    file = tmp_path / "images" / f"{hashlib.sha256(data).hexdigest()}.png"
    assert file.read_bytes() == data
    before = file.stat().st_mtime_ns
    assert await ImageStore(artifacts).put(data) == ref == await store.put(data)
    assert file.stat().st_mtime_ns == before
    assert await store.get(ref) == data
    file.write_bytes(png(colour=(1, 2, 3)))
    assert await store.get(ref) == data, "what was read once is held"
    with pytest.raises(StorageError, match="expected the digest in its name"):
        await ImageStore(artifacts).get(ref)
    file.unlink()
    with pytest.raises(NotFoundError, match="TRIFORGE_ARTIFACTS_URL"):
        await ImageStore(artifacts).get(ref)


async def test_a_refused_image_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        await ImageStore(ArtifactStore(str(tmp_path))).put(b"no image")
    assert not (tmp_path / "images").exists()


async def test_images_held_in_memory_stay_within_their_budget(tmp_path: Path) -> None:
    artifacts = ArtifactStore(str(tmp_path))
    images = [png(colour=(c, 0, 0)) for c in range(4)]
    store = ImageStore(artifacts, held=2 * max(map(len, images)))
    refs = [await store.put(image) for image in images]
    for ref, image in zip(refs, images, strict=True):
        assert await store.get(ref) == image
    for ref in refs:
        (tmp_path / image_name(ref)).unlink()
    assert await store.get(refs[3]) == images[3]
    with pytest.raises(NotFoundError):
        await store.get(refs[0])
