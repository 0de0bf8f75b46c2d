"""Screenshots in the artifact store, by content hash: `images/<sha256>.png`, written once, checked when read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from triforge.errors import NotFoundError, StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.types import ImageRef
from triforge.vision.files import describe, digest_of

_ENDINGS = {"image/png": "png", "image/jpeg": "jpg"}
_HELD = 64 * 2**20  # bytes of images that are kept in memory


def image_name(ref: ImageRef) -> str:
    """Where an image lies in the artifact store."""
    return f"images/{ref.id.removeprefix('sha256:')}.{_ENDINGS[ref.media_type]}"


class ImageStore:
    """Keeps images, and `held` bytes of those read last in memory. Safe to share between the coroutines of one loop."""

    def __init__(self, artifacts: ArtifactStore, *, held: int = _HELD) -> None:
        self._artifacts = artifacts
        self._budget = held
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    async def put(self, data: bytes) -> ImageRef:
        """Keep an image, once; InputError if it is no whole PNG or JPEG or too large."""
        return await asyncio.to_thread(self.keep, data)

    def keep(self, data: bytes) -> ImageRef:
        """`put`, blocking."""
        ref = describe(data, where="screenshot")
        name = image_name(ref)
        if not self._artifacts.exists(name):
            self._artifacts.write(name, data)
        return ref

    async def get(self, ref: ImageRef) -> bytes:
        """The bytes of an image."""
        found = self._held.get(ref.id)
        if found is not None:
            self._held.move_to_end(ref.id)
            return found
        data = await asyncio.to_thread(self.read, ref)
        if ref.id not in self._held and len(data) <= self._budget:
            self._held[ref.id] = data
            self._size += len(data)
            while self._size > self._budget:
                self._size -= len(self._held.popitem(last=False)[1])
        return data

    def read(self, ref: ImageRef) -> bytes:
        """`get`, blocking and without the memory."""
        name = image_name(ref)
        try:
            data = self._artifacts.read(name)
        except NotFoundError:
            raise NotFoundError(
                f"image {ref.id} is not in the artifact store; do all services have the same TRIFORGE_ARTIFACTS_URL?"
            ) from None
        if digest_of(data) != ref.id:
            raise StorageError(
                f"{self._artifacts.uri(name)}: holds {digest_of(data)}, expected what its name says; it was changed or cut "
                "off, delete it"
            )
        return data
