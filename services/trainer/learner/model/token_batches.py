"""Token sequences as tensors of one forward pass that name exactly the positions whose log-probability is wanted.

packed      one line without padding; what rows begin with alike is there once (`triforge.algorithms.prefix_tree`)
rectangle   a row a line, padded on the right: for models whose attention knows no packed rows, and for rows
            that bring more inputs than their ids
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.trainer.learner.model.packed_attention import Layout
from triforge.algorithms.dealing import Price, deal, spread
from triforge.algorithms.packing import micro_batches
from triforge.algorithms.prefix_tree import Order, pack

_PAD_TO = 8  # widths repeat, so the matrix kernels that were prepared for a shape are used again
_PADDING = 256  # padded cells that a forward pass may always have

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Inputs = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """One forward pass, B rows of T cells, N scored tokens; tensors are int64.

    Ids are padded on the right with 0. Causal attention never lets a real token see what is right of it, so no attention
    mask is needed.
    """

    ids: Tensor  # [B, T]
    predict: Tensor  # [N], cells of the flattened ids whose output predicts the scored tokens
    targets: Tensor  # [N], the scored tokens
    cells: Ints  # [N], where the scored tokens stand in the step's flat arrays
    tokens: int  # of all rows, whether they share cells or not
    computed: int  # cells among B * T that are no padding
    pairs: int  # (token, token it sees) among them
    positions: Tensor | None = None  # [B, T] of packed rows; None counts from 0
    layout: Layout | None = None  # how packed rows see each other; None of a rectangle
    inputs: Inputs = field(default_factory=dict)  # what else the model is called with, by name

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a transformers model."""
        found: dict[str, Any] = {"input_ids": self.ids, "use_cache": False, **self.inputs}
        if self.layout is not None:
            found |= {"position_ids": self.positions, "layout": self.layout}
        return found


class Sequences:
    """Sequences with scored positions; the scored tokens of all of them, in order, index flat arrays.

    What stands behind the last scored token of a sequence cannot influence anything and is left out. Positions to score
    are ascending, each at least 1; `inputs` is what else the model needs of each sequence, by the name of its argument.
    """

    def __init__(
        self, ids: Sequence[Ints], scored: Sequence[Ints], inputs: Sequence[Inputs] | None = None
    ) -> None:
        self._ids = ids
        self._scored = scored
        self._inputs = inputs or [{}] * len(ids)
        self.counts = [len(s) for s in scored]
        self._starts = np.cumsum([0, *self.counts])
        self.lengths = [int(s[-1]) if len(s) else 0 for s in scored]
        self.plain = not any(self._inputs)
        """Whether the ids are all that there is."""

    @property
    def total(self) -> int:
        """Number of scored tokens."""
        return int(self._starts[-1])

    def cells_of(self, rows: Sequence[int]) -> Ints:
        """Where the scored tokens of some sequences stand in flat arrays."""
        if not rows:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([np.arange(self._starts[r], self._starts[r + 1]) for r in rows])

    def scored(self, row: int) -> Ints:
        """Return the positions of a sequence's scored tokens."""
        return self._scored[row]

    def seen(self, row: int) -> Ints:
        """Return the ids of a sequence that a scored token depends on."""
        return self._ids[row][: self.lengths[row]]

    def batch(
        self, rows: Sequence[int], device: torch.device, *, packed: bool = False
    ) -> TokenBatch:
        """Return some sequences as tensors, packed or padded. Each must have a scored token."""
        if packed:
            return self._packed(rows, device)
        width = -(-max(self.lengths[r] for r in rows) // _PAD_TO) * _PAD_TO
        padded = np.zeros((len(rows), width), dtype=np.int64)
        for line, r in enumerate(rows):
            padded[line, : self.lengths[r]] = self.seen(r)
        predict = [self._scored[r] - 1 + line * width for line, r in enumerate(rows)]
        tokens = sum(self.lengths[r] for r in rows)
        return TokenBatch(
            ids=torch.from_numpy(padded).to(device),
            predict=torch.from_numpy(np.concatenate(predict)).to(device),
            targets=self._targets(rows).to(device),
            cells=self.cells_of(rows),
            tokens=tokens,
            computed=tokens,
            pairs=sum(self.lengths[r] * (self.lengths[r] + 1) // 2 for r in rows),
            inputs=self._joined(rows, device),
        )

    def _packed(self, rows: Sequence[int], device: torch.device) -> TokenBatch:
        packing = pack([self.seen(r) for r in rows], pad_to=_PAD_TO)
        predict = [w[self._scored[r] - 1] for r, w in zip(rows, packing.where, strict=True)]
        return TokenBatch(
            ids=torch.from_numpy(packing.ids)[None].to(device),
            predict=torch.from_numpy(np.concatenate(predict)).to(device),
            targets=self._targets(rows).to(device),
            cells=self.cells_of(rows),
            tokens=packing.useful,
            computed=packing.blocks[-1].end,
            pairs=packing.pairs,
            positions=torch.from_numpy(packing.positions)[None].to(device),
            layout=Layout.of(packing.blocks, device),
        )

    def _targets(self, rows: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.concatenate([self._ids[r][self._scored[r]] for r in rows]))

    def _joined(self, rows: Sequence[int], device: torch.device) -> Inputs:
        names = {name for r in rows for name in self._inputs[r]}
        return {
            name: torch.cat([self._inputs[r][name] for r in rows if name in self._inputs[r]]).to(
                device
            )
            for name in sorted(names)
        }


def passes(
    rows: Sequence[int],
    sequences: Sequences,
    token_budget: int,
    *,
    packed: bool,
    ranks: int = 1,
    price: Price = Price(),  # noqa: B008 (frozen)
) -> list[list[int]]:
    """Split rows into forward passes of at most `token_budget` cells, and those over the ranks.

    Args:
        rows: numbers of `sequences`; every one comes back exactly once.
        token_budget: cells that a forward pass may hold; a single longer row has one of its own.
        packed: whether the passes are to be packed, or rectangles.
        price: of computing, so that every rank has about as much to do.

    Returns:
        The rows of each pass. Rank r of R computes passes r, r + R, r + 2 R and so on, dear ones first; one without rows
        stands where a rank has fewer than another.
    """
    lengths = [sequences.lengths[r] for r in rows]
    scored = [sequences.counts[r] for r in rows]
    if packed:
        order = Order([sequences.seen(r) for r in rows])
        dealt = deal(order, scored, token_budget=token_budget, ranks=ranks, price=price)
        shares = [part.passes for part in dealt]
    else:
        costs = [
            price.way(length) + price.scored * n for length, n in zip(lengths, scored, strict=True)
        ]
        parts = [list(range(len(rows)))] if ranks == 1 else spread(costs, ranks)
        shares = [rectangles(part, lengths, token_budget) for part in parts]
    turns = max(map(len, shares))
    return [
        [rows[i] for i in share[t]] if t < len(share) else []
        for t in range(turns)
        for share in shares
    ]


def rectangles(rows: Sequence[int], lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Split rows into forward passes of at most `token_budget` cells, of which few are padding.

    A forward pass more costs about as much as a hundred cells of a tiny model and less of a large one, so a budget's
    worth of rows is cut again where the rows grow shorter. `lengths` is indexed by the rows' numbers; a row longer than
    the budget has a pass of its own.
    """
    spare = max(_PADDING, token_budget // 64)
    found: list[list[int]] = []
    for part in micro_batches([lengths[r] for r in rows], token_budget=token_budget):
        width = padding = 0
        for row in sorted((rows[i] for i in part), key=lambda r: -lengths[r]):
            padding += width - lengths[row]
            if width == 0 or padding > spare:
                found.append([])
                width, padding = lengths[row], 0
            found[-1].append(row)
    return found
