"""Who embeds screenshots and texts for `vlm_contrast`: a model behind `POST /v1/embeddings`, or a built-in that knows colours.

The route is SGLang's (`--is-embedding`); `python -m services.local_engine` serves it for a CLIP folder.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import httpx
import numpy as np
from pydantic import BaseModel, ValidationError

from services.reward.relabelling import Encoder, Relabeller
from triforge.clients.transport import http_client, request
from triforge.config import ContrastSection, Settings
from triforge.errors import ConfigError, RewardError
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.types import ImageRef
from triforge.vision.files import data_uri
from triforge.vision.image_spec import opened

ReadImage = Callable[[ImageRef], Awaitable[bytes]]

_COLOURS: Final = {
    "black": (0, 0, 0), "white": (255, 255, 255), "grey": (128, 128, 128), "red": (220, 30, 30),
    "green": (30, 180, 30), "blue": (30, 60, 220), "yellow": (240, 220, 30), "orange": (250, 140, 20),
    "purple": (140, 40, 160), "brown": (120, 70, 30), "pink": (250, 150, 190), "cyan": (40, 200, 210),
}  # fmt: skip
_POINTS: Final = np.array(list(_COLOURS.values()), dtype=np.float64)
_COUNTED: Final = (64, 64)  # pixels of an image, at most


class _Embedding(BaseModel):
    index: int
    embedding: list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]


class ServiceEncoder:
    """A model behind `POST /v1/embeddings`. One a process and event loop."""

    def __init__(
        self,
        base_url: str,
        read: ReadImage,
        *,
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = http_client(base_url, timeout_s=300.0, transport=transport, api_key=api_key)
        self._read = read

    async def __call__(self, items: Sequence[str | ImageRef]) -> Sequence[Sequence[float]]:
        """Ask for all of them at once; RewardError if the answer is no list of embeddings."""
        sent = [
            {"text": item}
            if isinstance(item, str)
            else {"image": data_uri(item, await self._read(item))}
            for item in items
        ]
        body = {"model": "encoder", "input": sent}
        reply = await request(self._http, "POST", "/v1/embeddings", body=body, repeatable=True)
        try:
            found = _Embeddings.model_validate_json(reply.content).data
        except ValidationError as error:
            raise RewardError(
                f"{self._http.base_url}: no answer of POST /v1/embeddings: {error}"
            ) from error
        return [one.embedding for one in sorted(found, key=lambda one: one.index)]


class ColourEncoder:
    """Embeds an image by its share of each colour and a text by the colours that it names: deterministic, and blind to all else."""

    def __init__(self, read: ReadImage) -> None:
        self._read = read

    async def __call__(self, items: Sequence[str | ImageRef]) -> Sequence[Sequence[float]]:
        """Embed them; a text without a colour is all zeros."""
        return [_named(item) if isinstance(item, str) else await self._seen(item) for item in items]

    async def _seen(self, ref: ImageRef) -> Sequence[float]:
        return await asyncio.to_thread(_shares, await self._read(ref), ref)


def _shares(content: bytes, ref: ImageRef) -> Sequence[float]:
    image = opened(content, ref)
    image.thumbnail(_COUNTED, resample=0)  # the nearest pixels: no colours are mixed
    pixels = np.asarray(image, dtype=np.float64).reshape(-1, 1, 3)
    nearest = ((pixels - _POINTS) ** 2).sum(axis=2).argmin(axis=1)
    counts: list[float] = (np.bincount(nearest, minlength=len(_POINTS)) / len(nearest)).tolist()
    return counts


def _named(text: str) -> Sequence[float]:
    words = re.findall(r"[a-z]+", text.lower())
    return [float(words.count(name)) for name in _COLOURS]


_SHARED: WeakKeyDictionary[Any, dict[str, Relabeller]] = WeakKeyDictionary()


def shared(contrast: ContrastSection) -> Relabeller:
    """The relabeller of this event loop for an encoder, with the deployment's addresses.

    Raises:
        ConfigError: the deployment has no encoder.
    """
    known = _SHARED.setdefault(asyncio.get_running_loop(), {})
    if contrast.encoder not in known:
        settings = Settings.from_env()
        read = ImageStore(ArtifactStore(settings.artifacts_url)).get
        encoder: Encoder = ColourEncoder(read)
        if contrast.encoder == "service":
            if not settings.has("encoder"):
                raise ConfigError(
                    "TRIFORGE_ENCODER_URL: given 'none' with reward.kind = 'vlm_contrast', expected the address of a model "
                    "that embeds images and texts; `python -m services.local_engine --model-path` a CLIP folder serves one"
                )
            encoder = ServiceEncoder(
                settings.encoder_url, read, api_key=settings.api_key.get_secret_value()
            )
        known[contrast.encoder] = Relabeller(encoder)
    return known[contrast.encoder]
