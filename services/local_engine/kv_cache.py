"""Keys and values of the running requests, one row a request, read as views.

Running requests always occupy rows 0..n-1, so that a decode step reads `[:n, :span]` of the storage without copying.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event

import numpy as np
import torch
from torch import Tensor

from services.local_engine.images import Media
from services.local_engine.lora import Adapter


class Halted(Exception):  # noqa: N818 - a request, not a failure
    """A forward pass was stopped between two layers. The cells that it wrote are not used."""


@dataclass(slots=True)
class StepBatch:
    """One forward pass over the rows [first, first + rows), `width` token places a row; N tokens really exist."""

    ids: Tensor  # int64 [N], row by row
    positions: Tensor  # int64 [N]
    cells: Tensor  # int64 [N], where their keys and values go: row * capacity + position
    first: int
    rows: int
    width: int
    span: int  # length of the longest row after the pass
    mask: Tensor  # [rows, 1, width, span], 0 or -inf, of the model's type
    pack: Tensor | None = None  # int64 [N], places in the layout [rows * width], if that has gaps
    wanted: Tensor | None = None  # int64 [M], which tokens need logits; None for all
    adapted: list[tuple[Adapter, Tensor]] = field(default_factory=list)  # each one's tokens
    media: list[Media | None] = field(default_factory=list)  # a row's images, if the model sees
    halt: Event | None = None  # set when the pass is to stop

    def check(self) -> None:
        """Raise `Halted` if the pass is to stop; models call it before each layer."""
        if self.halt is not None and self.halt.is_set():
            raise Halted


class SlotCache:
    """Storage `data` of shape [layers, rows, capacity, 2, kv_heads, head_dim], on a device and in a type.

    Never written cells are zero, not garbage: a masked NaN would still poison the weighted sum of the values.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.layers, self.kv_heads, self.head_dim = layers, kv_heads, head_dim
        self.device, self.dtype = device, dtype
        self._allocate(4, 64)

    def _allocate(self, rows: int, capacity: int) -> None:
        shape = self.layers, rows, capacity, 2, self.kv_heads, self.head_dim
        if (self.device.type, self.dtype) == ("cpu", torch.float32):
            # The kernel provides numpy's zeros on first touch; torch.zeros would touch them all.
            self.data = torch.from_numpy(np.zeros(shape, dtype=np.float32))
        else:
            self.data = torch.zeros(shape, device=self.device, dtype=self.dtype)
        self.rows, self.capacity = rows, capacity  # now that there was memory for them
        cell = 2 * self.kv_heads * self.head_dim
        self.flat = [self.data[i].view(rows * capacity, cell) for i in range(self.layers)]
        self.keys = [self.data[i, :, :, 0].transpose(1, 2) for i in range(self.layers)]
        self.values = [self.data[i, :, :, 1].transpose(1, 2) for i in range(self.layers)]
        self._columns = torch.arange(capacity, device=self.device)

    def reserve(self, rows: int, capacity: int, lengths: list[int]) -> None:
        """Grow to at least `rows` x `capacity`; the first `lengths[r]` cells of row r survive."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        old = self.data
        self._allocate(
            self.rows if rows <= self.rows else max(rows, 2 * self.rows),
            self.capacity if capacity <= self.capacity else max(capacity, 2 * self.capacity),
        )
        for row, length in enumerate(lengths):
            self.data[:, row, :length].copy_(old[:, row, :length])

    def write_prefix(self, row: int, start: int, segment: Tensor) -> None:
        """Put `segment` [layers, n, 2, kv_heads, head_dim] into cells [start, start + n) of `row`."""
        self.data[:, row, start : start + segment.shape[1]].copy_(segment)

    def read(self, row: int, start: int, end: int) -> Tensor:
        """Copy cells [start, end) of `row`: [layers, end - start, 2, kv_heads, head_dim]."""
        return self.data[:, row, start:end].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cells of row `source` to row `target`."""
        self.data[:, target, :length].copy_(self.data[:, source, :length])

    def _mask(self, positions: Tensor, span: int) -> Tensor:
        """Hide from tokens at `positions` [rows, width] the cells behind them: [rows, 1, width, span]."""
        hidden = self._columns[:span] > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, device=self.device, dtype=self.dtype)
        return mask.masked_fill_(hidden, float("-inf"))

    def decode_batch(self, ids: Tensor, positions: Tensor, bases: Tensor, span: int) -> StepBatch:
        """Build a step of one token for each of the rows 0..n-1; `bases` is `row * capacity`, `span` the longest row after it.

        All three are on the CPU.
        """
        rows = ids.shape[0]
        ids, positions, cells = self._here(ids, positions, bases + positions)
        mask = self._mask(positions[:, None], span)
        return StepBatch(ids, positions, cells, 0, rows, 1, span, mask)

    def prefill_batch(
        self, first: int, tokens: list[list[int]], past: list[int], wanted: list[list[int]]
    ) -> StepBatch:
        """Build a step of several tokens for each of the rows first..first+len(tokens)-1, behind `past` filled cells.

        Some rows may have none. `wanted` are, for each row, the indices into its tokens that need logits.
        """
        counts = [len(t) for t in tokens]
        width, rows = max(counts), len(tokens)
        span = max(p + n for p, n in zip(past, counts, strict=True))
        row_of = np.repeat(np.arange(rows), counts)
        starts = np.cumsum(counts) - counts
        column = np.arange(len(row_of)) - starts[row_of]
        positions = np.asarray(past)[row_of] + column
        numbers = (
            np.fromiter((i for t in tokens for i in t), dtype=np.int64, count=len(row_of)),
            positions,
            (first + row_of) * self.capacity + positions,
            row_of * width + column,
            np.array([s + i for s, row in zip(starts, wanted, strict=True) for i in row]),
            (np.asarray(past)[:, None] + np.arange(width)).ravel(),
        )
        ids, places, cells, pack, picked, seen = self._here(
            *(torch.from_numpy(part.astype(np.int64)) for part in numbers)
        )
        mask = self._mask(seen.view(rows, width), span)
        full = len(row_of) == rows * width
        return StepBatch(
            ids, places, cells, first, rows, width, span, mask, None if full else pack, picked
        )

    def _here(self, *numbers: Tensor) -> list[Tensor]:
        """Move integers to the device in one transfer."""
        if self.device.type == "cpu":
            return list(numbers)
        sizes = [len(part) for part in numbers]
        return list(torch.split(torch.cat(numbers).to(self.device), sizes))
