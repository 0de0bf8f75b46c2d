"""A forward pass of the Llama family over the slot cache, written for little overhead a step.

It computes the same as the transformers module with fewer operations: q, k and v are one matrix, so are gate and up; the rotary
embedding is one complex multiplication of the halves of each head; grouped query heads lie along the query axis, so that keys
and values are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from services.local_engine.kv_cache import SlotCache, StepBatch
from services.local_engine.lora import Adapter, read_adapter
from services.local_engine.weights import Model

_LONGEST = 1 << 24  # tokens; the angles of all positions are in memory


@dataclass(frozen=True)
class LlamaShape:
    """The numbers of a Llama config that the forward pass needs."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    context: int
    tied: bool

    @staticmethod
    def from_config(config: dict[str, Any]) -> LlamaShape | None:
        """Read a `config.json`; None for a model that this forward pass cannot compute."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        plain = (
            config.get("model_type") == "llama"
            and rope.get("rope_type", rope.get("type", "default")) == "default"
            and not config.get("attention_bias")
            and not config.get("mlp_bias")
            and config.get("hidden_act", "silu") == "silu"
            and float(rope.get("partial_rotary_factor", 1.0)) == 1.0
        )
        if not plain:
            return None
        context = int(config.get("max_position_embeddings", 2048))
        if context > _LONGEST:
            raise ValueError(f"max_position_embeddings is {context}, expected at most {_LONGEST}")
        heads = int(config["num_attention_heads"])
        return LlamaShape(
            vocab=int(config["vocab_size"]),
            hidden=int(config["hidden_size"]),
            inner=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            context=context,
            tied=bool(config.get("tie_word_embeddings", False)),
        )


@dataclass(slots=True)
class _Layer:
    """Weights of one layer as the forward pass wants them."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


# The weights of a folder whose rows make up each of these matrices.
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUT = ("self_attn.o_proj",)
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_DOWN = ("mlp.down_proj",)


class LlamaModel(Model):
    """RMSNorm, rotary embedding, attention over the slot cache, SwiGLU; tied or untied output matrix."""

    def __init__(self, shape: LlamaShape, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        self.shape = s = shape
        self.vocab_size, self.context_length = s.vocab, s.context
        self._embed = torch.empty(s.vocab, s.hidden, dtype=dtype)
        self._norm = torch.empty(s.hidden, dtype=dtype)
        self._head = self._embed if s.tied else torch.empty(s.vocab, s.hidden, dtype=dtype)
        self.weights |= {"model.embed_tokens.weight": self._embed, "model.norm.weight": self._norm}
        if s.tied:
            self.twins["lm_head.weight"] = "model.embed_tokens.weight"
        else:
            self.weights["lm_head.weight"] = self._head
        query, key = s.heads * s.head_dim, s.kv_heads * s.head_dim
        # Where the rows of each weight lie in their matrix, and its outputs in the product.
        self._rows = {
            "self_attn.q_proj": slice(0, query),
            "self_attn.k_proj": slice(query, query + key),
            "self_attn.v_proj": slice(query + key, query + 2 * key),
            "self_attn.o_proj": slice(0, s.hidden),
            "mlp.gate_proj": slice(0, s.inner),
            "mlp.up_proj": slice(s.inner, 2 * s.inner),
            "mlp.down_proj": slice(0, s.hidden),
        }
        self._layers = [self._new_layer(index) for index in range(s.layers)]
        half = torch.arange(0, s.head_dim, 2, dtype=torch.float32) / s.head_dim
        angles = torch.arange(s.context, dtype=torch.float32)[:, None] * (1.0 / s.theta**half)
        self._turns = torch.polar(torch.ones_like(angles), angles)[:, None, :]

    def read_adapter(self, folder: Path) -> Adapter:
        return read_adapter(folder, self.shapes(), self.device, self.dtype)

    def new_cache(self) -> SlotCache:
        s = self.shape
        return SlotCache(s.layers, s.kv_heads, s.head_dim, self.device, self.dtype)

    def _new_layer(self, index: int) -> _Layer:
        s, prefix = self.shape, f"model.layers.{index}."
        query, key = s.heads * s.head_dim, s.kv_heads * s.head_dim
        empty = partial(torch.empty, dtype=self.dtype)
        layer = _Layer(
            attention_norm=empty(s.hidden),
            qkv=empty(query + 2 * key, s.hidden),
            out=empty(s.hidden, query),
            mlp_norm=empty(s.hidden),
            gate_up=empty(2 * s.inner, s.hidden),
            down=empty(s.hidden, s.inner),
        )
        self.weights[f"{prefix}input_layernorm.weight"] = layer.attention_norm
        self.weights[f"{prefix}post_attention_layernorm.weight"] = layer.mlp_norm
        matrices = {_QKV: layer.qkv, _OUT: layer.out, _GATE_UP: layer.gate_up, _DOWN: layer.down}
        for names, matrix in matrices.items():
            for name in names:
                self.weights[f"{prefix}{name}.weight"] = matrix[self._rows[name]]
        return layer

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        s = self.shape
        n = batch.ids.shape[0]
        rotated = s.heads + s.kv_heads
        turns = self._turns.index_select(0, batch.positions)
        mask = self._grouped_mask(batch)
        rows = slice(batch.first, batch.first + batch.rows)
        norm_shape = (s.hidden,)
        x = self._embed.index_select(0, batch.ids)
        for index, layer in enumerate(self._layers):
            batch.check()
            normed = F.rms_norm(x, norm_shape, layer.attention_norm, s.eps)
            qkv = F.linear(normed, layer.qkv)
            if batch.adapted:
                self._adapt(batch, index, normed, qkv, _QKV)
            halves = qkv[:, : rotated * s.head_dim].view(n, rotated, 2, s.head_dim // 2)
            # Positions are turned in float32; there are no complex numbers of bfloat16.
            turned = torch.complex(halves[:, :, 0].float(), halves[:, :, 1].float()).mul_(turns)
            halves.copy_(torch.view_as_real(turned).transpose(2, 3))
            cache.flat[index].index_copy_(0, batch.cells, qkv[:, s.heads * s.head_dim :])
            seen = F.scaled_dot_product_attention(
                self._queries(qkv, batch),
                cache.keys[index][rows, :, : batch.span],
                cache.values[index][rows, :, : batch.span],
                attn_mask=mask,
            )
            flat = self._flatten(seen, batch)
            x = torch.addmm(x, flat, layer.out.t())
            if batch.adapted:
                self._adapt(batch, index, flat, x, _OUT)
            normed = F.rms_norm(x, norm_shape, layer.mlp_norm, s.eps)
            both = F.linear(normed, layer.gate_up)
            if batch.adapted:
                self._adapt(batch, index, normed, both, _GATE_UP)
            inner = F.silu(both[:, : s.inner]).mul_(both[:, s.inner :])
            x = torch.addmm(x, inner, layer.down.t())
            if batch.adapted:
                self._adapt(batch, index, inner, x, _DOWN)
        batch.check()
        if batch.wanted is not None:
            x = x.index_select(0, batch.wanted)
        return F.linear(F.rms_norm(x, norm_shape, self._norm, s.eps), self._head)

    def _adapt(
        self, batch: StepBatch, index: int, source: Tensor, target: Tensor, names: tuple[str, ...]
    ) -> None:
        """Add the parts of the batch's adapters to the product of these weights of layer `index`."""
        for name in names:
            for adapter, tokens in batch.adapted:
                weight = f"model.layers.{index}.{name}.weight"
                adapter.add(weight, source, target[:, self._rows[name]], tokens)

    def _queries(self, qkv: Tensor, batch: StepBatch) -> Tensor:
        """Lay out [N, ...] as [rows, kv_heads, group * width, head_dim]; query heads of a group lie along the query axis."""
        s = self.shape
        group = s.heads // s.kv_heads
        q = qkv[:, : s.heads * s.head_dim]
        if batch.pack is not None:
            padded = q.new_zeros(batch.rows * batch.width, q.shape[1])
            q = padded.index_copy_(0, batch.pack, q)
        if batch.width == 1:
            return q.view(batch.rows, s.kv_heads, group, s.head_dim)
        q = q.view(batch.rows, batch.width, s.kv_heads, group, s.head_dim)
        return q.permute(0, 2, 3, 1, 4).reshape(batch.rows, s.kv_heads, -1, s.head_dim)

    def _flatten(self, seen: Tensor, batch: StepBatch) -> Tensor:
        """Undo `_queries`: return [N, heads * head_dim]."""
        s = self.shape
        if batch.width == 1:
            flat = seen.reshape(batch.rows, s.heads * s.head_dim)
        else:
            group = s.heads // s.kv_heads
            seen = seen.reshape(batch.rows, s.kv_heads, group, batch.width, s.head_dim)
            flat = seen.permute(0, 3, 1, 2, 4).reshape(batch.rows * batch.width, -1)
        return flat if batch.pack is None else flat.index_select(0, batch.pack)

    def _grouped_mask(self, batch: StepBatch) -> Tensor:
        group = self.shape.heads // self.shape.kv_heads
        if group == 1 or batch.width == 1:
            return batch.mask
        return batch.mask.expand(-1, group, -1, -1).reshape(batch.rows, 1, -1, batch.span)
