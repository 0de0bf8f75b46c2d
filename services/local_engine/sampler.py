"""Sampling for a whole batch at once.

Log-probabilities are the log-softmax of logits / temperature over the whole vocabulary, before top-k, top-p and grammars; at temperature 0 they are the log-softmax of the logits. Randomness is a hash of (seed of the
request, number of tokens it has sampled), so a request with a seed gives the same tokens whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.local_engine.request import SamplingParams

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def stream_seed(seed: int, sample: int) -> int:
    """A 64-bit seed for sample number `sample` of a request; sample 0 and seed s differ from sample 1 and seed s-1."""
    word = (seed * 0xD1342543DE82EF95 + sample * _GOLDEN + 1) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    return word ^ (word >> 31)


def uniforms(seeds: NDArray[np.uint64], counts: NDArray[np.uint64]) -> NDArray[np.float32]:
    """One number of [0, 1) a row, by the SplitMix64 finaliser (Steele et al., 2014) of seed + count * golden ratio.

    23 bits are kept: `u * total` in float32 then stays below `total` for every total.
    """
    word = seeds + (counts + np.uint64(1)) * np.uint64(_GOLDEN)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    found: NDArray[np.float32] = (word >> np.uint64(41)).astype(np.float32) * np.float32(2.0**-23)
    return found


@dataclass(slots=True)
class Sampled:
    """`ids` and `logprobs` a row; `full` [rows, vocab] are the log-probabilities they were taken from."""

    ids: Tensor
    logprobs: Tensor
    full: Tensor


class SamplingTable:
    """Sampling settings of at most `rows` running requests, one row each, in arrays."""

    def __init__(self, rows: int) -> None:
        self.temperature = np.ones(rows, dtype=np.float32)
        self.top_p = np.ones(rows, dtype=np.float32)
        self.top_k = np.zeros(rows, dtype=np.int64)
        self.seed = np.zeros(rows, dtype=np.uint64)
        self.count = np.zeros(rows, dtype=np.uint64)

    def put(self, row: int, params: SamplingParams, *, seed: int, count: int) -> None:
        """Set one row; `count` is the number of tokens sampled so far."""
        self.temperature[row], self.top_p[row] = params.temperature, params.top_p
        self.top_k[row] = max(params.top_k, 0)
        self.seed[row], self.count[row] = seed, count

    def move(self, source: int, target: int) -> None:
        """Copy row `source` over row `target`."""
        for array in (self.temperature, self.top_p, self.top_k, self.seed, self.count):
            array[target] = array[source]

    def sample(self, logits: Tensor, first: int, bans: list[tuple[int, Tensor]]) -> Sampled:
        """Sample one token for each of the rows first..first+n-1 and count it.

        Args:
            logits: [n, vocab] float32.
            first: table row of logits row 0.
            bans: (logits row, bool [vocab] of tokens that must not be sampled).
        """
        n = logits.shape[0]
        rows = slice(first, first + n)
        temperature = self.temperature[rows]
        greedy = temperature == 0.0
        if not (temperature == 1.0).all():
            divisor = torch.from_numpy(np.where(greedy, np.float32(1.0), temperature))
            logits = logits / divisor[:, None]
        full = torch.log_softmax(logits, dim=-1)
        allowed = full
        if bans:
            allowed = full.clone()
            for row, banned in bans:
                allowed[row].masked_fill_(banned, float("-inf"))
        if greedy.all():
            ids = allowed.argmax(dim=-1)
        else:
            ids = self._draw(allowed, rows)
            if greedy.any():
                ids = torch.where(torch.from_numpy(greedy), allowed.argmax(dim=-1), ids)
        self.count[rows] += np.uint64(1)
        return Sampled(ids, full.gather(1, ids[:, None])[:, 0], full)

    def _draw(self, allowed: Tensor, rows: slice) -> Tensor:
        """Inverse-CDF sampling. The cumulative sum is scaled by its own total, so weights need not sum to one."""
        weights = allowed.exp()
        filtered = np.nonzero((self.top_p[rows] < 1.0) | (self.top_k[rows] > 0))[0]
        if len(filtered):
            self._filter(weights, filtered, rows)
        cumulative = weights.cumsum(dim=-1)
        u = torch.from_numpy(uniforms(self.seed[rows], self.count[rows]))
        target = cumulative[:, -1:] * u[:, None]
        ids = torch.searchsorted(cumulative, target, right=True)[:, 0]
        return ids.clamp_(max=weights.shape[1] - 1)

    def _filter(self, weights: Tensor, which: NDArray[np.intp], rows: slice) -> None:
        """Zero what top-k and top-p exclude in the rows `which`, in place; the likeliest token always stays.

        Top-p keeps the smallest set whose mass reaches p (Holtzman et al., 2020).
        """
        index = torch.from_numpy(which)
        ordered, order = weights[index].sort(dim=-1, descending=True, stable=True)
        ordered /= ordered.sum(dim=-1, keepdim=True)
        before = ordered.cumsum(dim=-1) - ordered
        # A sum of rounded masses can reach 1 early, so "all of it" must not be a comparison with 1.
        top_p = np.where(self.top_p[rows][which] >= 1.0, np.float32(2.0), self.top_p[rows][which])
        keep = before < torch.from_numpy(top_p)[:, None]
        top_k = self.top_k[rows][which]
        limit = torch.from_numpy(np.where(top_k == 0, weights.shape[1], top_k))
        keep &= torch.arange(weights.shape[1])[None, :] < limit[:, None]
        keep[:, 0] = True
        weights[index] = torch.zeros_like(ordered).scatter_(1, order, ordered * keep)
