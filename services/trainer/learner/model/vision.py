"""Rows with images: what of them goes into a batch, and the body of a model that sees.

A batch carries which images stand where, as small tensors; the pixels are read from the artifact store when a forward
pass needs them, on whatever rank that is. The images' embeddings are put in the places of their tokens and nowhere else:
an image token that was sampled is a token like any other, as it was for the engine. Positions are `ImageSpec.positions`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from triforge.errors import TrainerError
from triforge.store.images import ImageStore
from triforge.types import ImageRef, PlacedImage, TrainRow
from triforge.vision.image_spec import ImageSpec, pixels_of

_TYPES = ("image/png", "image/jpeg")
_KEPT = 256  # images whose pixels stay in memory: a group sees many of them again and again


def inputs_of(row: TrainRow, end: int) -> Mapping[str, Tensor]:
    """Return the image inputs of the first `end` tokens of a row.

    Returns:
        `images` int64 [1], how many; and if there are any `image_digests` uint8 [n, 32] and `image_facts` int64 [n, 6]:
        start, end, width, height, bytes and the number of the media type.
    """
    placed = [p for p in row.images if p.end <= end]
    count = torch.tensor([len(placed)])
    if not placed:
        return {"images": count}
    digests = [list(bytes.fromhex(p.image.id.removeprefix("sha256:"))) for p in placed]
    return {
        "images": count,
        "image_digests": torch.tensor(digests, dtype=torch.uint8),
        "image_facts": torch.tensor([_facts(p) for p in placed]),
    }


def uneven(rows: Sequence[TrainRow]) -> bool:
    """Whether some of the rows show images before their last trained token and others do not."""
    ends = [(row, max((i for i, w in enumerate(row.weights) if w), default=0)) for row in rows]
    return len({any(p.end <= end for p in row.images) for row, end in ends if end}) > 1


def _facts(placed: PlacedImage) -> list[int]:
    image = placed.image
    kind = _TYPES.index(image.media_type)
    return [placed.start, placed.end, image.width, image.height, image.size, kind]


def _placed(digests: Tensor, facts: Tensor) -> list[PlacedImage]:
    """`inputs_of`, backwards."""
    return [
        PlacedImage(
            image=ImageRef(
                id="sha256:" + bytes(digest).hex(),
                media_type=_TYPES[kind],
                width=width,
                height=height,
                size=size,
            ),
            start=start,
            end=end,
        )
        for digest, (start, end, width, height, size, kind) in zip(
            digests.tolist(), facts.tolist(), strict=True
        )
    ]


class VisionBody:
    """The body of a model that sees, called like the body itself; without `images` no row may have any."""

    def __init__(self, body: Any, image_spec: ImageSpec, images: ImageStore | None) -> None:
        self._body, self._image_spec, self._images = body, image_spec, images
        self._known: OrderedDict[str, Tensor] = OrderedDict()

    def __call__(self, *, images: Tensor | None = None, **inputs: Any) -> Any:
        """Run a forward pass; `images` and the other inputs are `inputs_of` the rows, one after another.

        Raises:
            TrainerError: an image's tokens are not those that this model sees in it, or it was given no images.
            NotFoundError: an image is not in the artifact store.
        """
        digests, facts = inputs.pop("image_digests", None), inputs.pop("image_facts", None)
        if images is None or digests is None or facts is None:
            return self._body(**inputs)
        ids = inputs.pop("input_ids")
        placed = iter(_placed(digests.cpu(), facts.cpu()))
        own = [[next(placed) for _ in range(count)] for count in images.tolist()]
        positions = self._positions(ids, own)  # first: it finds what does not fit
        return self._body(inputs_embeds=self._embed(ids, own), position_ids=positions, **inputs)

    def _embed(self, ids: Tensor, own: Sequence[Sequence[PlacedImage]]) -> Tensor:
        pairs = [(row, p) for row, images in enumerate(own) for p in images]
        pixels = torch.cat([self._pixels(p.image) for _, p in pairs]).to(ids.device)
        grid = torch.tensor(
            [[1, *self._image_spec.grid(p.image)] for _, p in pairs], device=ids.device
        )
        found = self._body.get_image_features(pixel_values=pixels, image_grid_thw=grid)
        features = torch.cat(tuple(getattr(found, "pooler_output", found)))
        lines = torch.cat([torch.full((p.end - p.start,), row) for row, p in pairs])
        columns = torch.cat([torch.arange(p.start, p.end) for _, p in pairs])
        embeddings: Tensor = self._body.get_input_embeddings()(ids)
        return embeddings.index_put(
            (lines.to(ids.device), columns.to(ids.device)), features.to(embeddings.dtype)
        )

    def _positions(self, ids: Tensor, own: Sequence[Sequence[PlacedImage]]) -> Tensor:
        try:
            tables = [self._image_spec.positions(ids.shape[1], images)[0] for images in own]
        except ValueError as error:  # of our own, with a sentence
            raise TrainerError(f"a row with images does not fit this model: {error}") from error
        return torch.stack([torch.from_numpy(table) for table in tables], dim=1).to(ids.device)

    def _pixels(self, image: ImageRef) -> Tensor:
        found = self._known.get(image.id)
        if found is None:
            if self._images is None:
                raise TrainerError(
                    f"image {image.id}: this model was loaded without an image store, expected one to read its pixels from"
                )
            data = self._images.read(image)
            found = self._known[image.id] = torch.from_numpy(
                pixels_of(data, image, self._image_spec)
            )
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(image.id)
        return found
