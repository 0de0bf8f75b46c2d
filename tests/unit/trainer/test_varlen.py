"""The way that packed rows take on a GPU, as far as it can go without one: what it asks of the kernels, and what it makes of
their answers. The kernels themselves are a reference by their documentation here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from services.trainer.learner.model.packed_attention import (
    Layout,
    blockwise,
    by_lengths,
    varlen_kernel,
)
from triforge.algorithms.prefix_tree import Packing, pack

CPU = torch.device("cpu")
HEADS, GROUPS, WIDTH = 4, 2, 8


@pytest.fixture(autouse=True)
def fresh_choice() -> Iterator[None]:
    """Clear the cached choice of the kernel."""
    varlen_kernel.cache_clear()
    yield
    varlen_kernel.cache_clear()


def family(*, share: bool = True) -> Packing:
    """Two prompts with answers, one of which goes on from another; a lone row. Or rows that share nothing."""
    draw = np.random.default_rng(4)
    if not share:
        return pack([draw.integers(0, 50, n) for n in (9, 40, 41, 57)], pad_to=8)
    rows = []
    for votes in (4, 3):
        prompt = draw.integers(0, 50, 37)
        rows += [np.append(prompt, draw.integers(0, 50, 1 + 5 * n)) for n in range(votes)]
    long = np.append(rows[3], draw.integers(0, 50, 20))
    return pack([*rows, long, draw.integers(0, 50, 9)], pad_to=8)


def inputs(cells: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(1, heads, cells, WIDTH, dtype=dtype, requires_grad=True)
        for heads in (HEADS, GROUPS, GROUPS)
    ]


def reference(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, most_q: int, most_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    """`flash_attn_varlen_func` of flash_attn 2.1 and later: masks are aligned at the lower right corner."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert causal
    assert dropout_p == 0.0
    assert (most_q, most_k) == (int(cu_q.diff().max()), int(cu_k.diff().max()))
    assert (int(cu_q[-1]), int(cu_k[-1])) == (len(q), len(k)) == (len(q), len(v))
    parts = []
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        mask = torch.ones(int(b - a), int(d - c), dtype=torch.bool).tril(int((d - c) - (b - a)))
        own = (t[None].transpose(1, 2) for t in (q[a:b], k[c:d], v[c:d]))
        parts.append(
            F.scaled_dot_product_attention(
                *own, attn_mask=mask, scale=softmax_scale, enable_gqa=True
            )[0].transpose(0, 1)
        )
    return torch.cat(parts)


def gradients(kernel: Any, packing: Packing, layout: Layout) -> list[Tensor]:
    qkv = inputs(len(packing.ids))
    out = kernel(*qkv, layout, 0.3)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.detach(), *(t.grad for t in qkv if t.grad is not None)]


@pytest.mark.parametrize("share", [True, False])
def test_one_call_of_a_kernel_for_variable_lengths_is_attention_to_all_that_is_seen(
    share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=reference)
    )
    packing = family(share=share)
    layout = Layout.of_lengths(packing.blocks, CPU)
    assert (layout.gather is None) == (not share)
    found = gradients(by_lengths, packing, layout)
    wanted = gradients(blockwise, packing, layout)
    assert len(found) == len(wanted) == 4
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_pytorchs_kernel_takes_what_it_is_given_forwards_and_backwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # as where it is not installed
    packing = family()
    with FakeTensorMode():
        qkv = inputs(len(packing.ids), torch.bfloat16)
        out = by_lengths(*qkv, Layout.of_lengths(packing.blocks, CPU), 0.3)
        assert out.shape == (1, HEADS, len(packing.ids), WIDTH)
        assert out.dtype == torch.bfloat16
        out.sum().backward()
        assert [t.grad.shape for t in qkv if t.grad is not None] == [t.shape for t in qkv]


@pytest.mark.parametrize("announced", [True, False])
def test_heads_in_groups_are_announced_to_the_pytorch_that_wants_to_know(
    announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch 2.11 takes heads in groups without a word, and has no option for them."""

    def of_2_11(
        *given: Any, scale: float | None = None, window_size: tuple[int, int] = (-1, -1)
    ) -> Tensor:
        assert window_size == (-1, 0)  # causal
        return reference(*given, softmax_scale=scale, causal=True)

    def later(
        *given: Any, scale: Any = None, window_size: Any = None, enable_gqa: bool = False
    ) -> Tensor:
        assert enable_gqa
        return of_2_11(*given, scale=scale, window_size=window_size)

    monkeypatch.setitem(sys.modules, "flash_attn", None)
    here = SimpleNamespace(varlen_attn=later if announced else of_2_11)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", here)
    packing = family()
    layout = Layout.of_lengths(packing.blocks, CPU)
    found, wanted = (gradients(way, packing, layout) for way in (by_lengths, blockwise))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("here", [None, SimpleNamespace(varlen_attn=lambda q, k, v: q)])
def test_a_pytorch_without_such_a_kernel_is_not_asked_for_it(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None stands for a module that cannot be imported."""
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", here)
    assert varlen_kernel() is None
