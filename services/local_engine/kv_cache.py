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

NEVER = float("-inf")


class Halted(Exception):  # noqa: N818 - a request, not a failure
    """A forward pass was stopped between two layers. Cells that it wrote are worth nothing."""


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
    halt: Event | None = None  # once it is set, the pass is not wanted any more

    def check(self) -> None:
        """Called by models before each layer; raises `Halted` if the pass is to stop here."""
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
            # The kernel hands out numpy's zeros on first touch; torch.zeros would touch them all.
            self.data = torch.from_numpy(np.zeros(shape, dtype=np.float32))
        else:
            self.data = torch.zeros(shape, device=self.device, dtype=self.dtype)
        self.rows, self.capacity = rows, capacity  # now that there was memory for them
        cell = 2 * self.kv_heads * self.head_dim
        self.flat = [self.data[i].view(rows * capacity, cell) for i in range(self.layers)]
        self.keys = [self.data[i, :, :, 0].transpose(1, 2) for i in range(self.layers)]
        self.values = [self.data[i, :, :, 1].transpose(1, 2) for i in range(self.layers)]
        # One row of the decode mask a request; a step opens one more cell of each row.
        self._open = torch.full((rows, capacity), NEVER, device=self.device, dtype=self.dtype)
        self._open_flat = self._open.view(-1)

    def reserve(self, rows: int, capacity: int, lengths: list[int]) -> None:
        """Grow to at least `rows` x `capacity`; the first `lengths[r]` cells of row r survive."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        old, old_open = self.data, self._open
        self._allocate(
            self.rows if rows <= self.rows else max(rows, 2 * self.rows),
            self.capacity if capacity <= self.capacity else max(capacity, 2 * self.capacity),
        )
        for row, length in enumerate(lengths):
            self.data[:, row, :length].copy_(old[:, row, :length])
            self._open[row, : old_open.shape[1]].copy_(old_open[row])

    def write_prefix(self, row: int, start: int, segment: Tensor) -> None:
        """Put `segment` [layers, n, 2, kv_heads, head_dim] into cells [start, start + n) of `row`."""
        self.data[:, row, start : start + segment.shape[1]].copy_(segment)

    def read(self, row: int, start: int, end: int) -> Tensor:
        """A copy of cells [start, end) of `row`: [layers, end - start, 2, kv_heads, head_dim]."""
        return self.data[:, row, start:end].clone()

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cells of row `source` to row `target`."""
        self.data[:, target, :length].copy_(self.data[:, source, :length])
        self._open[target].copy_(self._open[source])

    def open_row(self, row: int, length: int) -> None:
        """Let decode steps of `row` see its first `length` cells and no other."""
        self._open[row, :length] = 0.0
        self._open[row, length:] = NEVER

    def decode_batch(self, ids: Tensor, positions: Tensor, bases: Tensor, span: int) -> StepBatch:
        """One token for each of the rows 0..n-1; `bases` is `row * capacity`, `span` the longest row after it.

        All three are on the CPU, as the scheduler counts.
        """
        rows = ids.shape[0]
        ids, positions, cells = self._here(ids, positions, bases + positions)
        self._open_flat.index_fill_(0, cells, 0.0)
        mask = self._open[:rows, None, None, :span]
        return StepBatch(ids, positions, cells, 0, rows, 1, span, mask)

    def prefill_batch(
        self, first: int, tokens: list[list[int]], past: list[int], wanted: list[list[int]]
    ) -> StepBatch:
        """Several tokens for each of the rows first..first+len(tokens)-1, behind `past` cells that are filled.

        Some rows may have none. `wanted` are, for each row, the indices into its tokens that need logits.
        """
        counts = [len(t) for t in tokens]
        width, rows = max(counts), len(tokens)
        span = max(p + n for p, n in zip(past, counts, strict=True))
        row_of = np.repeat(np.arange(rows), counts)
        starts = np.cumsum(counts) - counts
        column = np.arange(len(row_of)) - starts[row_of]
        positions = np.asarray(past)[row_of] + column
        ids = np.fromiter((i for t in tokens for i in t), dtype=np.int64, count=len(row_of))
        full = len(row_of) == rows * width
        seen = np.asarray(past)[:, None] + np.arange(width)[None, :]
        blocked = np.arange(span)[None, None, :] > seen[:, :, None]
        mask = torch.from_numpy(np.where(blocked, np.float32(NEVER), np.float32(0.0)))[:, None]
        picks = [int(s) + i for s, row in zip(starts, wanted, strict=True) for i in row]
        counted = (positions, (first + row_of) * self.capacity + positions, row_of * width + column)
        ids_, places, cells, pack, picked = self._here(
            torch.from_numpy(ids),
            *(torch.from_numpy(numbers.astype(np.int64)) for numbers in counted),
            torch.tensor(picks, dtype=torch.int64),
        )
        mask = mask.to(self.device, self.dtype)
        return StepBatch(
            ids_, places, cells, first, rows, width, span, mask, None if full else pack, picked
        )

    def _here(self, *numbers: Tensor) -> list[Tensor]:
        """Integers of the scheduler on the device, in one transfer."""
        if self.device.type == "cpu":
            return list(numbers)
        sizes = [len(part) for part in numbers]
        return list(torch.split(torch.cat(numbers).to(self.device), sizes))
