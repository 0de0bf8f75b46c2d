"""Rows that begin alike, laid out so that what they share is computed once.

    rows            tree             cells of one forward pass          blocks
    A B C D         A B C            A B C | D | E F                    (0, 3, 6) (3, 4, 4) (4, 6, 6)
    A B C E F       ├ D
                    └ E F

A causal model's state at a token depends on the tokens before it and on nothing else, so rows that begin alike have the
same states there. Computing them once changes neither a log-probability nor, summed over the rows, a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triforge.errors import InputError

Ints = npt.NDArray[np.int64]

SHORTEST = 16  # tokens that are worth a block of their own


class Block(NamedTuple):
    """Cells `start..end` are consecutive tokens; cells `end..last` are all that go on from them."""

    start: int
    end: int
    last: int


@dataclass(frozen=True, slots=True)
class Packing:
    """T cells of one forward pass.

    Attributes:
        ids: int64 [T], the tokens.
        positions: int64 [T], how many tokens stand before each in its rows.
        blocks: in order of `start`; a token sees its own block up to itself, and whole every block whose range
            `end..last` it stands in.
        where: of each row, int64 [its length], the cells of its tokens.
        useful: tokens of all rows; T are computed.
        pairs: (token, token it sees) that are computed: what attention costs.
    """

    ids: Ints
    positions: Ints
    blocks: tuple[Block, ...]
    where: tuple[Ints, ...]
    useful: int
    pairs: int


class Order:
    """Rows, token ids of each and none empty, in the order in which rows that begin alike are neighbours."""

    def __init__(self, rows: Sequence[Ints]) -> None:
        if any(not len(row) for row in rows):
            raise InputError("prefix tree: given a row without tokens, expected at least one each")
        keys = [row.astype(">i4").tobytes() for row in rows]
        self.order = sorted(range(len(rows)), key=keys.__getitem__)
        self.lengths = [len(rows[r]) for r in self.order]
        pairs = zip(self.order, self.order[1:], strict=False)
        self.shared = [_alike(rows[a], rows[b]) for a, b in pairs]  # with the next one

    def runs(self, first: int, end: int, depth: int) -> list[tuple[int, int]]:
        """Neighbours among `first..end` that stay alike long enough after `depth`; rows that end there are done."""
        runs: list[tuple[int, int]] = []
        for i in range(first, end):
            if self.lengths[i] == depth:
                continue
            if runs and runs[-1][1] == i and self.shared[i - 1] >= depth + SHORTEST:
                runs[-1] = (runs[-1][0], i + 1)
            else:
                runs.append((i, i + 1))
        return runs


def pack(rows: Sequence[Ints], *, pad_to: int = 1) -> Packing:
    """Lay rows, none empty, out in one forward pass.

    T is a multiple of `pad_to`; cells at the end belong to no block and hold token 0.
    """
    tree = Order(rows)
    where = [np.empty(len(row), dtype=np.int64) for row in rows]
    ids: list[Ints] = []
    positions: list[Ints] = []
    blocks: list[Block] = []
    pairs = cells = 0
    # (first, end, depth): the rows order[first:end] are alike up to depth, and that much of them is laid out.
    todo = [(0, len(rows), 0)]
    while todo:
        first, end, depth = todo.pop()
        if first < 0:  # all that goes on from a block is laid out
            block = blocks[end]
            blocks[end] = block._replace(last=cells)
            pairs += (cells - block.end) * (block.end - block.start)
            continue
        runs = tree.runs(first, end, depth)
        if len(runs) > 1 or not runs:
            todo += [(a, b, depth) for a, b in reversed(runs)]
            continue
        a, b = runs[0]
        until = min([tree.lengths[a], *tree.shared[a : b - 1]])
        width = until - depth
        for r in tree.order[a:b]:
            where[r][depth:until] = np.arange(cells, cells + width)
        ids.append(rows[tree.order[a]][depth:until])
        positions.append(np.arange(depth, until))
        blocks.append(Block(cells, cells + width, cells + width))
        cells += width
        pairs += width * (width + 1) // 2
        if b - a > 1:
            todo += [(-1, len(blocks) - 1, 0), (a, b, until)]
    spare = np.zeros(-cells % pad_to, dtype=np.int64)
    return Packing(
        ids=np.concatenate([*ids, spare]).astype(np.int64),
        positions=np.concatenate([*positions, spare]).astype(np.int64),
        blocks=tuple(blocks),
        where=tuple(where),
        useful=sum(len(row) for row in rows),
        pairs=pairs,
    )


def _alike(a: Ints, b: Ints) -> int:
    """How many tokens two rows begin with alike."""
    n = min(len(a), len(b))
    odd = np.flatnonzero(a[:n] != b[:n])
    return int(odd[0]) if len(odd) else n
