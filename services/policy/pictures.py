"""Images on their way to an engine: from references to what its `/generate` takes.

SGLang wants one image token an image, expands it itself and keeps all other ids as they are; the images go along as
`data:` URIs. How many tokens it made of the prompt is in its answer, and is compared with ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.policy.sglang_parsing import Pictures
from triforge.errors import ConfigError
from triforge.store.images import ImageStore
from triforge.types import GenerateRequest, ImageRef, PlacedImage
from triforge.vision.files import data_uri
from triforge.vision.sight import Sight

Held = Mapping[str, bytes]  # images that came with a request itself, by id


def sees(request: GenerateRequest) -> bool:
    """Whether a request holds images."""
    return bool(request.prefix_images) or any(
        not isinstance(message.content, str) and message.images for message in request.messages
    )


class Album:
    """Finds the bytes of images.

    Args:
        store: where screenshots lie; None knows only images that come with their request.
    """

    def __init__(self, store: ImageStore | None) -> None:
        self._store = store

    async def pictures(
        self, sight: Sight, ids: Sequence[int], images: Sequence[PlacedImage], held: Held
    ) -> Pictures:
        """What goes to the engine for a prompt with images.

        Raises:
            NotFoundError: an image is in no artifact store.
            StorageError: an image is not what its reference says.
            ConfigError: this service was given no artifact store.
        """
        data = [await self._data(placed.image, held) for placed in images]
        return Pictures(sight.collapsed(ids, images), data)

    async def _data(self, image: ImageRef, held: Held) -> str:
        found = held.get(image.id)
        if found is None:
            if self._store is None:
                raise ConfigError(f"image {image.id}: this policy service has no artifact store")
            found = await self._store.get(image)
        return data_uri(image, found)
