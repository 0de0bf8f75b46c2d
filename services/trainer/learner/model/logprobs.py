"""Log-probabilities and entropies of chosen tokens, without ever holding logits for all of them.

The output layer is applied to a piece of the hidden states at a time, forwards and again backwards, so that a matrix of
(tokens x vocabulary) never exists whole. With z = (W h + b) / temperature, p = softmax(z) and y the token:

    logp = z[y] - lse(z)        d logp / dz = onehot(y) - p
    H    = -sum(p log p)        d H / dz    = -p (log p + H)

Of every token only lse(z) and H are kept. Tokens that one hidden state predicts share a row of logits. What fits into one
piece is kept as it is and not computed again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Head(NamedTuple):
    """The output layer: `weight` [V, d] in the type of the matrix products, `bias` [V] or None."""

    weight: Tensor
    bias: Tensor | None
    temperature: float

    def log_z(self, hidden: Tensor) -> Tensor:
        """Logits over the temperature, float32 [n, V]."""
        z = (hidden.to(self.weight.dtype) @ self.weight.t()).float()
        if self.bias is not None:
            z += self.bias
        return z if self.temperature == 1.0 else z.div_(self.temperature)


class _Plan(NamedTuple):
    """N tokens by the U cells that predict them, cut into pieces of cells.

    `cells` int64 [U] ascending; `order` int64 [N] puts tokens in the order of their cells, `row` [N] is the cell's number
    and `target` [N] the id, both in that order. Piece i holds cells `cuts[i][0]` of tokens `cuts[i][1]`.
    """

    cells: Tensor
    order: Tensor
    row: Tensor
    target: Tensor
    cuts: list[tuple[slice, slice]]

    @staticmethod
    def of(cells: Tensor, targets: Tensor, piece: int) -> _Plan:
        unique, places = torch.unique(cells, return_inverse=True)
        order = places.argsort(stable=True)
        row = places[order]
        starts = list(range(0, len(unique), piece))
        edges = torch.tensor([*starts, len(unique)], device=cells.device)
        tokens = torch.searchsorted(row, edges).tolist()
        cuts = [
            (slice(start, start + piece), slice(tokens[i], tokens[i + 1]))
            for i, start in enumerate(starts)
        ]
        return _Plan(unique, order, row, targets[order], cuts)


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        plan: _Plan,
        temperature: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        head = Head(weight.to(dtype), bias, temperature)  # once for all pieces
        picked = hidden[plan.cells]
        found = picked.new_empty(len(plan.order), dtype=torch.float32)
        entropy = picked.new_empty(len(plan.cells), dtype=torch.float32)
        lse = torch.empty_like(entropy)
        kept: Tensor | None = None
        for cells, tokens in plan.cuts:
            z = head.log_z(picked[cells])
            first = z[:, 0].clone()
            logp = torch.log_softmax(z, dim=-1)
            lse[cells] = first - logp[:, 0]
            rows = plan.row[tokens] - cells.start
            found[plan.order[tokens]] = logp[rows, plan.target[tokens]]
            entropy[cells] = -torch.exp(logp, out=z).mul_(logp).sum(-1)
            if len(plan.cuts) == 1 and any(ctx.needs_input_grad):
                kept = logp
        ctx.save_for_backward(hidden, weight, bias, lse, entropy, kept)
        ctx.plan, ctx.temperature, ctx.dtype = plan, temperature, dtype
        ctx.set_materialize_grads(False)
        spread = torch.empty_like(found)
        spread[plan.order] = entropy[plan.row]
        return found, spread

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, bias, lse, entropy, kept = ctx.saved_tensors
        plan: _Plan = ctx.plan
        head = Head(weight.to(ctx.dtype), bias, ctx.temperature)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        picked = hidden[plan.cells]
        d_picked = torch.empty_like(picked)
        d_weight = torch.zeros_like(weight) if wants_weight else None
        d_bias = torch.zeros_like(bias) if wants_bias else None
        for cells, tokens in plan.cuts:
            logp = head.log_z(picked[cells]) - lse[cells, None] if kept is None else kept
            dz = _d_logits(plan, cells, tokens, logp, entropy[cells], grad, grad_entropy)
            dz = dz.div_(ctx.temperature).to(ctx.dtype)
            if wants_hidden:
                d_picked[cells] = (dz @ head.weight).to(picked.dtype)
            if d_weight is not None:
                product = picked[cells].to(ctx.dtype)
                if d_weight.dtype == dz.dtype:  # in place
                    d_weight.addmm_(dz.t(), product)
                else:
                    d_weight += dz.t() @ product
            if d_bias is not None:
                d_bias += dz.sum(0).to(d_bias.dtype)
        d_hidden = None
        if wants_hidden:
            d_hidden = torch.zeros_like(hidden).index_copy_(0, plan.cells, d_picked)
        return d_hidden, d_weight, d_bias, None, None, None


def _d_logits(
    plan: _Plan,
    cells: slice,
    tokens: slice,
    logp: Tensor,
    entropy: Tensor,
    grad: Tensor | None,
    grad_entropy: Tensor | None,
) -> Tensor:
    """Return the gradient with respect to `z` of one piece, float32 [n, V]."""
    rows, order = plan.row[tokens] - cells.start, plan.order[tokens]
    p = logp.exp()
    per_cell = torch.zeros_like(entropy)
    if grad is not None:
        per_cell.index_add_(0, rows, grad[order])
    if grad_entropy is None:
        dz = p.mul_(-per_cell[:, None])
    else:
        ge = torch.zeros_like(entropy).index_add_(0, rows, grad_entropy[order])
        dz = p.mul_(-per_cell[:, None] - ge[:, None] * (logp + entropy[:, None]))
    if grad is not None:
        dz.index_put_((rows, plan.target[tokens]), grad[order], accumulate=True)
    return dz


def chosen_logprobs(
    hidden: Tensor,
    layer: torch.nn.Linear,
    cells: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    piece: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy at each of N tokens, float32 [N] each, both differentiable.

    Args:
        hidden: [T, d], the last hidden states.
        layer: gives the logits.
        cells: int64 [N], the hidden state that predicts each token; several tokens may share one.
        targets: int64 [N], their ids.
        temperature: logits are divided by it.
        piece: hidden states whose logits are held at once.
        dtype: of the matrix products.
    """
    plan = _Plan.of(cells, targets, piece)
    args = (hidden, layer.weight, layer.bias, plan, temperature, dtype)
    found: tuple[Tensor, Tensor] = _Logprobs.apply(*args)  # type: ignore[no-untyped-call]
    return found
