"""Screenshots in the artifact store, by content hash: `images/<sha256>.png`, written once, checked when read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from triforge.errors import NotFoundError, StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.types import ImageRef
from triforge.vision.files import describe, digest_of

_ENDINGS = {"image/png": "png", "image/jpeg": "jpg"}
_CACHED = 64 * 2**20  # bytes of images in memory


def image_name(ref: ImageRef) -> str:
    """Return the name of an image in the artifact store."""
    return f"images/{ref.id.removeprefix('sha256:')}.{_ENDINGS[ref.media_type]}"


class ImageStore:
    """Images, with a cache of those read last. The coroutines of one loop may share it."""

    def __init__(self, artifacts: ArtifactStore, *, held: int = _CACHED) -> None:
        self._artifacts = artifacts
        self._budget = held
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    async def put(self, data: bytes) -> ImageRef:
        """Store an image, once; InputError unless it is a whole PNG or JPEG of permitted size."""
        return await asyncio.to_thread(self.keep, data)

    def keep(self, data: bytes) -> ImageRef:
        """Store an image like `put`, blocking."""
        ref = describe(data, where="screenshot")
        name = image_name(ref)
        if not self._artifacts.exists(name):
            self._artifacts.write(name, data)
        return ref

    async def get(self, ref: ImageRef) -> bytes:
        """Return the bytes of an image."""
        if ref.id in self._cache:
            self._cache.move_to_end(ref.id)
            return self._cache[ref.id]
        data = await asyncio.to_thread(self.read, ref)
        if ref.id not in self._cache and len(data) <= self._budget:
            self._cache[ref.id] = data
            self._size += len(data)
            while self._size > self._budget:
                self._size -= len(self._cache.popitem(last=False)[1])
        return data

    def read(self, ref: ImageRef) -> bytes:
        """Return the bytes of an image without the cache, blocking."""
        name = image_name(ref)
        try:
            data = self._artifacts.read(name)
        except NotFoundError:
            raise NotFoundError(
                f"image {ref.id} is not in the artifact store; do all services have the same TRIFORGE_ARTIFACTS_URL?"
            ) from None
        if digest_of(data) != ref.id:
            raise StorageError(
                f"{self._artifacts.uri(name)}: holds {digest_of(data)}, expected the digest in its name; it was changed or "
                "truncated, delete it"
            )
        return data
