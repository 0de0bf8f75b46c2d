"""Any decoder of transformers with plain full attention, over the same slot cache; also those that see images.

The transformers module gets an ordinary padded batch, a four-dimensional mask and a `Cache` whose `update` writes into the
slots and returns views. A step is slower than with `llama.py`; every architecture without a special cache can be served.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.cache_utils import Cache, DynamicLayer

from services.local_engine.images import Image
from services.local_engine.kv_cache import SlotCache, StepBatch
from services.local_engine.weights import Model
from triforge.errors import WeightsError
from triforge.store.model_config import demand_full_attention
from triforge.vision.image_spec import ImageSpec

_HALF = 0.05  # how far half precision may be off in `check_cache`, over the largest logit
_KEPT_IMAGES = 64  # whose embeddings are kept, for further samples and turns


class _SlotView(Cache):  # type: ignore[misc]
    """A transformers `Cache` over one step's rows of the slot cache."""

    def __init__(self, cache: SlotCache, batch: StepBatch) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self._slots, self._batch = cache, batch

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [rows, kv_heads, width, head_dim] keys and values; return all that the rows hold."""
        batch, cache = self._batch, self._slots
        batch.check()  # each layer calls this once
        both = torch.stack((key_states, value_states), dim=1)  # rows, 2, heads, width, dim
        flat = both.permute(0, 3, 1, 2, 4).reshape(batch.rows * batch.width, -1)
        if batch.pack is not None:
            flat = flat.index_select(0, batch.pack)
        cache.flat[layer_idx].index_copy_(0, batch.cells, flat)
        rows = slice(batch.first, batch.first + batch.rows)
        return (
            cache.keys[layer_idx][rows, :, : batch.span],
            cache.values[layer_idx][rows, :, : batch.span],
        )

    def get_seq_length(self, *_: Any) -> int:
        """Return the tokens before this step in the longest row; the positions are explicit anyway."""
        return self._batch.span - self._batch.width


class TransformersModel(Model):
    """A `Model` around `AutoModelForCausalLM`."""

    _auto: Any = AutoModelForCausalLM

    def __init__(self, config: dict[str, Any], *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        try:
            settings = AutoConfig.for_model(**config)
        except Exception as error:  # any error that a field of the wrong type leads to
            raise WeightsError(f"config.json is not one of transformers: {error}") from error
        text = settings.get_text_config()
        self.context_length = int(getattr(text, "max_position_embeddings", 2048))
        demand_full_attention(text.to_dict())
        try:
            self._module = self._auto.from_config(
                settings, dtype=dtype, attn_implementation="sdpa", trust_remote_code=False
            ).eval()
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            raise WeightsError(f"transformers cannot build the model: {error}") from error
        self.vocab_size = int(text.vocab_size)
        heads = int(text.num_attention_heads)
        self._cache_shape = (
            int(text.num_hidden_layers),
            int(getattr(text, "num_key_value_heads", None) or heads),
            int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        )
        # Tied tensors share their storage and stand in a folder once, or twice.
        seen: dict[int, str] = {}
        for name, tensor in self._module.state_dict(keep_vars=True).items():
            first = seen.setdefault(tensor.data_ptr() or id(tensor), name)
            if first == name:
                self.weights[name] = tensor.detach()
            else:
                self.twins[name] = first

    def converted(self, tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
        # A folder has a tensor for each expert, and the module one for all of them.
        if tensors.keys() <= self.weights.keys() | self.twins.keys():
            return tensors
        try:
            made, info = type(self._module).from_pretrained(
                None, config=self._module.config, state_dict=tensors, dtype=torch.float32, trust_remote_code=False,
                output_loading_info=True,
            )  # fmt: skip
        except (RuntimeError, ValueError, KeyError, AttributeError) as error:
            raise WeightsError(f"{where}: {error}") from error
        own = {n: t for n, t in made.state_dict().items() if n not in info["missing_keys"]}
        return own | {n: tensors[n] for n in info["unexpected_keys"] if n in tensors}

    def new_cache(self) -> SlotCache:
        return SlotCache(*self._cache_shape, self.device, self.dtype)

    @torch.inference_mode()
    def check_cache(self) -> None:
        # Other kinds of caches and of positions than those of `_SlotView` give other logits.
        ids = [i * 7 % self.vocab_size for i in range(9)]
        cache = self.new_cache()
        try:
            row = torch.tensor([ids], device=self.device)
            expected = self._module(input_ids=row, use_cache=False).logits[0]
            parts = cache.prefill_batch(0, [ids[:3], ids[:5]], [0, 0], [[0, 1, 2], []])
            first = self.forward(parts, cache)
            rest = cache.prefill_batch(0, [ids[3:]], [3], [list(range(6))])
            logits = torch.cat((first, self.forward(rest, cache)))
            close = 1e-3 if self.dtype == torch.float32 else _HALF * float(expected.abs().max())
            same = torch.allclose(logits, expected, rtol=1e-3, atol=close)
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise WeightsError(f"the module does not run over the slot cache: {error}") from error
        if not same:
            raise WeightsError(
                "the module gives other logits over the slot cache; it is not served"
            )

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        places = batch.rows * batch.width
        ids, positions = batch.ids, batch.positions
        if batch.pack is not None:
            ids = ids.new_zeros(places).index_copy_(0, batch.pack, ids)
            positions = positions.new_zeros(places).index_copy_(0, batch.pack, positions)
        # The whole module, because some architectures scale or cap their logits after the output matrix.
        shape = batch.rows, batch.width
        logits: Tensor = self._module(
            **self._inputs(batch, ids.view(shape), positions.view(shape)),
            attention_mask=batch.mask,
            past_key_values=_SlotView(cache, batch),
            use_cache=True,
        ).logits.reshape(places, -1)
        for chosen in (batch.pack, batch.wanted):
            if chosen is not None:
                logits = logits.index_select(0, chosen)
        return logits

    def _inputs(self, _: StepBatch, ids: Tensor, numbers: Tensor, /) -> dict[str, Tensor]:
        """Return the module's arguments for tokens [rows, width] and their numbers in their sequences."""
        return {"input_ids": ids, "position_ids": numbers}


class VisionModel(TransformersModel):
    """A model that sees: images become embeddings in the places of their tokens."""

    _auto = AutoModelForImageTextToText

    def __init__(
        self, config: dict[str, Any], vision: ImageSpec, *, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(config, dtype=dtype)
        self.vision = vision
        self._embedded: OrderedDict[str, Tensor] = OrderedDict()

    def apply(self, tensors: dict[str, Tensor]) -> None:
        super().apply(tensors)
        self._embedded.clear()

    def _inputs(self, batch: StepBatch, ids: Tensor, numbers: Tensor, /) -> dict[str, Tensor]:
        if all(media is None for media in batch.media):
            return super()._inputs(batch, ids, numbers)
        embeddings = self._module.get_input_embeddings()(ids)
        positions = numbers.expand(3, *numbers.shape).clone()
        known = numbers.cpu()  # the one wait for the device
        for row, media in enumerate(batch.media):
            if media is None:
                continue
            positions[:, row] = media.positions(known[row]).to(self.device)
            for place, image in zip(media.places, media.images, strict=True):
                inside = (known[row] >= place.start) & (known[row] < place.end)
                if inside.any():
                    here = inside.nonzero()[:, 0].to(self.device)
                    embeddings[row, here] = self._embed(image)[numbers[row, here] - place.start]
        return {"inputs_embeds": embeddings, "position_ids": positions}

    def _embed(self, image: Image) -> Tensor:
        """Return embeddings [tokens, hidden] of an image under the weights that serve."""
        embedding = self._embedded.get(image.ref.id)
        if embedding is None:
            made = self._module.get_image_features(
                pixel_values=image.pixels.to(self.device, self.dtype),
                image_grid_thw=image.grid.to(self.device),
            )
            embedding = torch.cat(tuple(getattr(made, "pooler_output", made)))
            self._embedded[image.ref.id] = embedding
            if len(self._embedded) > _KEPT_IMAGES:
                self._embedded.popitem(last=False)
        self._embedded.move_to_end(image.ref.id)
        return embedding
