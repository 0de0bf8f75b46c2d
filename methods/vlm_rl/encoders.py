"""Encoders of screenshots and texts: a model behind `POST /v1/embeddings`, or a built-in that knows colours.

The route is SGLang's (`--is-embedding`); `python -m methods.vlm_rl` serves it for a CLIP folder.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import httpx
import numpy as np
from pydantic import BaseModel, ValidationError

from methods.vlm_rl.relabelling import Encoder, Relabeller
from triforge.clients.transport import http_client, request
from triforge.config import Settings
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
        """Embed all items in one request; raise RewardError if the reply is no list of embeddings."""
        inputs = [
            {"text": item}
            if isinstance(item, str)
            else {"image": data_uri(item, await self._read(item))}
            for item in items
        ]
        body = {"model": "encoder", "input": inputs}
        reply = await request(self._http, "POST", "/v1/embeddings", body=body, repeatable=True)
        try:
            embeddings = _Embeddings.model_validate_json(reply.content).data
        except ValidationError as error:
            raise RewardError(
                f"{self._http.base_url}: no reply of POST /v1/embeddings: {error}"
            ) from error
        return [one.embedding for one in sorted(embeddings, key=lambda one: one.index)]


class ColourEncoder:
    """Embeds an image by its share of each colour and a text by the colours that it names: deterministic, and blind to all else."""

    def __init__(self, read: ReadImage) -> None:
        self._read = read

    async def __call__(self, items: Sequence[str | ImageRef]) -> Sequence[Sequence[float]]:
        """Embed the items; the embedding of a text without a colour is zero."""
        return [
            _named(item) if isinstance(item, str) else await self._embedded(item) for item in items
        ]

    async def _embedded(self, ref: ImageRef) -> Sequence[float]:
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


def shared(name: Literal["service", "colours"]) -> Relabeller:
    """Return the relabeller of this event loop for an encoder, with the deployment's address.

    Raises:
        ConfigError: the deployment has no encoder.
    """
    known = _SHARED.setdefault(asyncio.get_running_loop(), {})
    if name not in known:
        settings = Settings.from_env()
        read = ImageStore(ArtifactStore(settings.artifacts_url)).get
        encoder: Encoder = ColourEncoder(read)
        if name == "service":
            if not settings.has("encoder"):
                raise ConfigError(
                    "TRIFORGE_ENCODER_URL: given 'none' with reward.kind = 'vlm_rl', expected the address of a model that "
                    "embeds images and texts; `python -m methods.vlm_rl --model-path` a CLIP folder serves one"
                )
            encoder = ServiceEncoder(
                settings.encoder_url, read, api_key=settings.api_key.get_secret_value()
            )
        known[name] = Relabeller(encoder)
    return known[name]
