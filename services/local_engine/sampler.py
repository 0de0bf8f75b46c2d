"""Sampling for a whole batch at once.

Log-probabilities are the log-softmax of logits / temperature over the whole vocabulary, after penalties and biases, which
change the logits, and before top-k, top-p and grammars; at temperature 0 they are the log-softmax of the logits. Randomness is a
hash of (seed of the request, number of tokens it has sampled), so a request with a seed gives the same tokens in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.local_engine.request import SamplingParams

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def stream_seed(seed: int, sample: int) -> int:
    """Return a 64-bit seed for a sample of a request; sample 0 and seed s differ from sample 1 and seed s-1."""
    word = (seed * 0xD1342543DE82EF95 + sample * _GOLDEN + 1) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    return word ^ (word >> 31)


def uniforms(seeds: NDArray[np.uint64], counts: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return one number of [0, 1) a row, by the SplitMix64 finaliser (Steele et al., 2014) of seed + count * golden ratio.

    23 bits are kept: `u * total` in float32 then stays below `total` for every total.
    """
    word = seeds + (counts + np.uint64(1)) * np.uint64(_GOLDEN)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    found: NDArray[np.float32] = (word >> np.uint64(41)).astype(np.float32) * np.float32(2.0**-23)
    return found


def shifted(
    logits: Tensor, params: Sequence[SamplingParams], outputs: Sequence[Sequence[int]]
) -> Tensor:
    """Add biases to logits [rows, vocab], and subtract the penalties for the tokens of each row's output."""
    if not any(p.shifts for p in params):
        return logits
    found = logits.clone()
    for row, p, output in zip(found, params, outputs, strict=True):
        if p.logit_bias:
            biases = torch.tensor([*p.logit_bias.values()], device=row.device)
            row[[int(token) for token in p.logit_bias]] += biases
        if output and p.shifts:
            seen, counts = map(torch.from_numpy, np.unique(output, return_counts=True))
            penalties = p.frequency_penalty * counts + p.presence_penalty
            row[seen.to(row.device)] -= penalties.to(row.device)
    return found


@dataclass(slots=True)
class Sampled:
    """`ids` and `logprobs` a row; `full` [rows, vocab] are the log-probabilities they were taken from."""

    ids: Tensor
    logprobs: Tensor
    full: Tensor


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    counts: Sequence[int],
    bans: Sequence[tuple[int, Tensor]] = (),
) -> Sampled:
    """Sample one token a row of `logits` [rows, vocab], float32.

    `seeds` are 64 bits a row, `counts` the tokens that it has sampled before, `bans` (row, bool [vocab] of excluded tokens).
    """
    temperature = np.array([p.temperature for p in params], dtype=np.float32)
    greedy = temperature == 0.0
    if not (temperature == 1.0).all():
        divisor = torch.from_numpy(np.where(greedy, np.float32(1.0), temperature))
        logits = logits / divisor.to(logits.device)[:, None]
    full = torch.log_softmax(logits, dim=-1)
    allowed = full
    if bans:
        allowed = full.clone()
        for row, banned in bans:
            allowed[row].masked_fill_(banned.to(allowed.device), float("-inf"))
    if greedy.all():
        ids = allowed.argmax(dim=-1)
    else:
        u = uniforms(np.array(seeds, dtype=np.uint64), np.array(counts, dtype=np.uint64))
        ids = _draw(allowed.exp(), torch.from_numpy(u).to(logits.device), params)
        if greedy.any():
            chosen = torch.from_numpy(greedy).to(logits.device)
            ids = torch.where(chosen, allowed.argmax(dim=-1), ids)
    return Sampled(ids, full.gather(1, ids[:, None])[:, 0], full)


def _draw(weights: Tensor, u: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Sample by the inverse of the CDF. The cumulative sum is scaled by its own total, so weights need not sum to one."""
    filtered = [row for row, p in enumerate(params) if p.top_p < 1.0 or p.top_k > 0]
    if filtered:
        _filter(weights, filtered, [params[row] for row in filtered])
    cumulative = weights.cumsum(dim=-1)
    if weights.device.type != "cpu":
        cumulative = rising(cumulative, weights)
    target = cumulative[:, -1:] * u[:, None]
    ids = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return ids.clamp_(max=weights.shape[1] - 1)


def rising(cumulative: Tensor, weights: Tensor) -> Tensor:
    """Return cumulative sums that never fall, and rise at weights above 0 alone.

    A GPU adds up in parallel, and its sums may be off by a rounding either way; an excluded token would be drawn there.
    """
    return cumulative.masked_fill(weights == 0.0, 0.0).cummax(dim=-1).values


def _filter(weights: Tensor, rows: list[int], params: list[SamplingParams]) -> None:
    """Zero the tokens that top-k and top-p exclude in these rows, in place; the likeliest token always stays.

    Top-p keeps the smallest set whose mass reaches p (Holtzman et al., 2020).
    """
    vocab, device = weights.shape[1], weights.device
    ordered, order = weights[rows].sort(dim=-1, descending=True, stable=True)
    ordered /= ordered.sum(dim=-1, keepdim=True)
    before = ordered.cumsum(dim=-1) - ordered
    # A sum of rounded masses can reach 1 early, so top_p = 1 must not be a comparison with 1.
    top_p = torch.tensor([p.top_p if p.top_p < 1.0 else 2.0 for p in params], device=device)
    limit = torch.tensor([p.top_k if p.top_k > 0 else vocab for p in params], device=device)
    keep = (before < top_p[:, None]) & (torch.arange(vocab, device=device) < limit[:, None])
    keep[:, 0] = True
    weights[rows] = torch.zeros_like(ordered).scatter_(1, order, ordered * keep)
