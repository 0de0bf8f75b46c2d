"""A CLIP model that embeds texts and images: `POST /v1/embeddings` with SGLang's multimodal input."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor
from transformers import AutoTokenizer, CLIPModel

from services.local_engine.request import LARGE, Body, read
from triforge.chat_template import read_json
from triforge.errors import WeightsError
from triforge.vision.files import describe, from_data_uri
from triforge.vision.image_spec import opened

_MOST = 256  # items of a request


class _Item(Body):
    text: str | None = None
    image: str | None = None

    @model_validator(mode="after")
    def _one(self) -> _Item:
        if (self.text is None) == (self.image is None):
            raise ValueError("expected either a text or an image (a data: URI)")
        return self


class _Wanted(Body):
    input: Annotated[tuple[_Item, ...], Field(min_length=1, max_length=_MOST, strict=False)]


class ClipModel:
    """A CLIP folder: config, tokenizer, preprocessor_config.json and safetensors.

    Raises:
        WeightsError: the folder is not one.
    """

    def __init__(self, folder: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        try:
            model: Any
            model, loading = CLIPModel.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
                output_loading_info=True,
            )
            if missing := sorted(loading["missing_keys"]):
                raise ValueError(f"{missing[0]} and {len(missing) - 1} more weights are missing")
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise WeightsError(f"{folder}: no CLIP model can be loaded: {error}") from error
        self._model, self._device, self._dtype = model.to(device).eval(), device, dtype
        self._side = int(model.config.vision_config.image_size)
        self._context = int(model.config.text_config.max_position_embeddings)
        sizes = read_json(folder / "preprocessor_config.json")
        self._mean = np.array(sizes.get("image_mean", [0.48145466, 0.4578275, 0.40821073]))
        self._std = np.array(sizes.get("image_std", [0.26862954, 0.26130258, 0.27577711]))

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return the embeddings [N, width] of texts, which are cut off at the model's context."""
        ids = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self._context,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            found: Tensor = self._model.get_text_features(
                input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]
            ).pooler_output
        return found.float().cpu()

    def images(self, uris: Sequence[str]) -> Tensor:
        """Return the embeddings [N, width] of images; raise InputError if one is no image."""
        pixels = np.stack([self._pixels(uri, f"input.{i}") for i, uri in enumerate(uris)])
        with torch.inference_mode():
            given = torch.from_numpy(pixels).to(self._device, self._dtype)
            found: Tensor = self._model.get_image_features(pixel_values=given).pooler_output
        return found.float().cpu()

    def _pixels(self, uri: str, where: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the middle square of an image as the model reads it, float32 [3, side, side]."""
        data = from_data_uri(uri, where=where)
        image = opened(data, describe(data, where=where))
        scale = self._side / min(image.size)
        size = [max(self._side, round(length * scale)) for length in image.size]
        left, top = ((length - self._side) // 2 for length in size)
        square = image.resize(size, 3).crop((left, top, left + self._side, top + self._side))
        normal = (np.asarray(square, dtype=np.float64) / 255.0 - self._mean) / self._std
        found: np.ndarray[Any, np.dtype[np.float32]] = normal.transpose(2, 0, 1).astype(np.float32)
        return found

    def embed(self, items: Sequence[tuple[str | None, str | None]]) -> list[list[float]]:
        """Return one embedding a (text, image), in order; texts are embedded together, and images are."""
        texts = [i for i, (text, _) in enumerate(items) if text is not None]
        images = [i for i, (_, image) in enumerate(items) if image is not None]
        found: dict[int, list[float]] = {}
        if texts:
            found |= zip(
                texts, self.texts([items[i][0] or "" for i in texts]).tolist(), strict=True
            )
        if images:
            found |= zip(
                images, self.images([items[i][1] or "" for i in images]).tolist(), strict=True
            )
        return [found[i] for i in range(len(items))]


def routes(encoder: ClipModel, served_name: str) -> list[Route]:
    """Return the routes of a server of embeddings."""
    turn = asyncio.Lock()  # one batch at a time

    async def embeddings(request: Request) -> Response:
        wanted = await read(request, _Wanted, most=LARGE)
        items = [(item.text, item.image) for item in wanted.input]
        async with turn:
            vectors = await asyncio.to_thread(encoder.embed, items)
        data = [
            {"object": "embedding", "index": i, "embedding": vector}
            for i, vector in enumerate(vectors)
        ]
        return JSONResponse({"object": "list", "model": served_name, "data": data})

    async def health(_: Request) -> Response:
        return Response()

    return [Route("/v1/embeddings", embeddings, methods=["POST"]), Route("/health", health)]
