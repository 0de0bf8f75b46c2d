"""Attention over packed rows: no padding, no mask, what rows begin with alike is there once.

transformers calls it under the name `NAME` for every layer. Without a `Layout` it is plain causal attention. With one the
cells of a forward pass are a tree of blocks (see `triforge.algorithms.prefix_tree`): each block attends to itself causally,
and all that goes on from a block attends to it whole. The parts of a token's attention are put together by their
log-sum-exps, as in FlashAttention (Dao et al., 2022); on the way back every part is differentiated with the outputs and
log-sum-exps of the whole.

| where                        | with                                                                                |
|------------------------------|-------------------------------------------------------------------------------------|
| CPU, float32 or bfloat16     | PyTorch's flash kernels, a call a block and a call a branching                       |
| GPU, bfloat16 or float16     | `flash_attn` if it is installed, else PyTorch's variable-length kernel; one call     |
| elsewhere, or without either | `scaled_dot_product_attention`, a call a block                                       |
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from triforge.algorithms.prefix_tree import Block

NAME = "triforge_packed"

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The blocks of a forward pass; travels to the attention function as the model's argument `layout`.

    All but the blocks is for kernels of variable lengths. `gather` is None where each block sees itself alone.
    """

    blocks: tuple[Block, ...]  # of its T cells
    gather: Tensor | None  # int64 [K], the cells that the blocks see, block after block
    starts: Tensor  # int32 [2, blocks + 1], where the queries and the keys of each block begin
    longest: tuple[int, int]  # most queries and most keys of a block

    @staticmethod
    def of(blocks: tuple[Block, ...], device: torch.device) -> Layout:
        """Lay blocks out for a device; only GPUs need more than the blocks."""
        if device.type != "cuda":
            return Layout(blocks, None, torch.empty(0), (0, 0))
        return Layout.of_lengths(blocks, device)

    @staticmethod
    def of_lengths(blocks: tuple[Block, ...], device: torch.device) -> Layout:
        """Lay blocks out for kernels of variable lengths."""
        cells = _seen(blocks)
        sizes = [[b.end - b.start for b in blocks], [len(c) for c in cells]]
        starts = torch.tensor(sizes).cumsum(1).int()
        alone = all(b.last == b.end for b in blocks)
        return Layout(
            blocks,
            None if alone else torch.cat(cells).to(device),
            F.pad(starts, (1, 0)).to(device),
            (max(sizes[0]), max(sizes[1])),
        )


def _seen(blocks: tuple[Block, ...]) -> list[Tensor]:
    """Return for each block the cells that its last token sees, in the order of their positions."""
    found: list[Tensor] = []
    above: list[Block] = []  # those that the next one may go on from
    for block in blocks:
        while above and above[-1].last <= block.start:
            above.pop()
        above.append(block)
        found.append(torch.cat([torch.arange(b.start, b.end) for b in above]))
    return found


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention by the interface of transformers: query [B, H, T, D], keys and values [B, G, T, D], result [B, T, H, D]."""
    if layout is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return plain
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Under autocast positions are turned in float32; values have the type that is meant.
    query, key = query.to(value.dtype), key.to(value.dtype)
    return _kernel(query)(query, key, value, layout, scale).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)

_Kernel = Callable[[Tensor, Tensor, Tensor, Layout, float], Tensor]


def _kernel(query: Tensor) -> _Kernel:
    if query.device.type == "cpu":
        return tree_attention
    half = query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16)
    return by_lengths if half and varlen_kernel() else blockwise


# ---- CPU ----


class _Tree(torch.autograd.Function):
    """Attention of one forward pass by PyTorch's CPU flash kernels: query [1, H, T, D], key and value [1, G, T, D]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float
    ) -> Tensor:
        blocks = layout.blocks
        out = torch.zeros_like(query)
        lse = query.new_zeros(query.shape[:3], dtype=torch.float32)
        for start, end, _ in blocks:
            own, sums = _flash(*_cut(start, end, query, key, value), 0.0, True, scale=scale)
            out[:, :, start:end] = own
            lse[:, :, start:end] = sums
        for start, end, last in blocks:
            if last > end:
                k, v = _cut(start, end, key, value)
                more, sums = _flash(query[:, :, end:last], k, v, 0.0, False, scale=scale)
                _merge(out[:, :, end:last], lse[:, :, end:last], more, sums)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for start, end, last in ctx.layout.blocks:
            ranges = [(start, end, True)] + ([(end, last, False)] if last > end else [])
            for a, b, causal in ranges:
                g, q, o = _cut(a, b, grad, query, out)
                k, v = _cut(start, end, key, value)
                found = _flash_backward(g, q, k, v, o, lse[:, :, a:b], 0.0, causal, scale=ctx.scale)
                dq[:, :, a:b] += found[0]
                dk[:, :, start:end] += found[1]
                dv[:, :, start:end] += found[2]
        return dq, dk, dv, None, None


def tree_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float
) -> Tensor:
    """[1, H, T, D] on the CPU; cells of no block come out as 0."""
    found: Tensor = _Tree.apply(query, key, value, layout, scale)  # type: ignore[no-untyped-call]
    return found


def _cut(start: int, end: int, *tensors: Tensor) -> list[Tensor]:
    return [t[:, :, start:end] for t in tensors]


def _merge(out: Tensor, lse: Tensor, more: Tensor, sums: Tensor) -> None:
    """Add another part of the keys to attention outputs, in place: softmax over the union of both."""
    whole = torch.logaddexp(lse, sums)
    out.mul_((lse - whole).exp_()[..., None].to(out.dtype))
    out.addcmul_(more, (sums - whole).exp_()[..., None].to(out.dtype))
    lse.copy_(whole)


# ---- GPU and others ----


def blockwise(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
    """[1, H, T, D] on any device, by plain attention of every block to all that it sees."""
    out = torch.zeros_like(query)
    for block, cells in zip(layout.blocks, _seen(layout.blocks), strict=True):
        seen = cells.to(query.device)
        size, all_of_it = block.end - block.start, len(seen)
        mask = torch.ones(size, all_of_it, dtype=torch.bool, device=query.device)
        part = F.scaled_dot_product_attention(
            query[:, :, block.start : block.end],
            key[:, :, seen],
            value[:, :, seen],
            attn_mask=mask.tril(all_of_it - size),
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        out = out.slice_scatter(part, 2, block.start, block.end)
    return out


def by_lengths(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float) -> Tensor:
    """[1, H, T, D] on a GPU, half precision: one call, in which each block's keys are all that it sees.

    Both kernels align causal masks at the lower right corner, so a block sees what stands before it whole.
    """
    cells = layout.blocks[-1].end
    q, k, v = (t[0].transpose(0, 1)[:cells] for t in (query, key, value))
    if layout.gather is not None:
        # Not `index_select`: its gradient would be added up in half precision.
        k, v = k[layout.gather], v[layout.gather]
    kernel = varlen_kernel()
    assert kernel is not None  # or this way is not taken
    found = kernel(
        q.contiguous(), k.contiguous(), v.contiguous(), *layout.starts, *layout.longest, scale
    )
    return F.pad(found.transpose(0, 1), (0, 0, 0, query.shape[2] - cells))[None]


@functools.cache
def varlen_kernel() -> Callable[..., Tensor] | None:
    """Attention of `q [Q, H, D], k and v [K, G, D], starts of both int32 [N + 1], most of both, scale` to [Q, H, D].

    None where neither flash_attn is installed nor PyTorch has one that takes all of that (2.11 and later have).
    """
    with contextlib.suppress(ImportError):
        flash: Any = importlib.import_module("flash_attn").flash_attn_varlen_func
        return lambda *given: flash(*given[:7], softmax_scale=given[7], causal=True)
    with contextlib.suppress(ImportError):
        own: Any = importlib.import_module("torch.nn.attention.varlen").varlen_attn
        known = inspect.signature(own).parameters
        if {"scale", "window_size"} <= set(known):
            # Before 2.12 grouped heads need not be announced.
            grouped = {"enable_gqa": True} if "enable_gqa" in known else {}
            return lambda *given: own(*given[:7], scale=given[7], window_size=(-1, 0), **grouped)
    return None
