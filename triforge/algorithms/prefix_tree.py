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
    """Rows in the order in which rows that begin alike are neighbours.

    Args:
        rows: token ids of each, none empty.

    Raises:
        InputError: a row is empty.
    """

    def __init__(self, rows: Sequence[Ints]) -> None:
        if any(not len(row) for row in rows):
            raise InputError("prefix tree: given a row without tokens, expected at least one each")
        keys = [row.astype(">i4").tobytes() for row in rows]
        self.order = sorted(range(len(rows)), key=keys.__getitem__)
        self.lengths = [len(rows[r]) for r in self.order]
        pairs = zip(self.order, self.order[1:], strict=False)
        self.shared = [_alike(rows[a], rows[b]) for a, b in pairs]  # with the next one


def pack(rows: Sequence[Ints], *, share: bool = True, pad_to: int = 1) -> Packing:
    """Lay rows out in one forward pass.

    Args:
        rows: token ids of each, none empty.
        share: whether what rows begin with is computed once.
        pad_to: T is a multiple of it; cells at the end belong to no block and hold token 0.

    Raises:
        InputError: a row is empty.
    """
    tree = Order(rows)
    shared = tree.shared if share else [0] * len(tree.shared)
    where = [np.empty(len(row), dtype=np.int64) for row in rows]
    pieces: list[Ints] = []
    blocks: list[Block] = []
    depths: list[int] = []
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
        runs = _runs(shared, tree.lengths, first, end, depth)
        if len(runs) > 1 or not runs:
            todo += [(a, b, depth) for a, b in reversed(runs)]
            continue
        a, b = runs[0]
        until = min([tree.lengths[a], *shared[a : b - 1]])
        for r in tree.order[a:b]:
            where[r][depth:until] = np.arange(cells, cells + until - depth)
        pieces.append(rows[tree.order[a]][depth:until])
        blocks.append(Block(cells, cells + until - depth, cells + until - depth))
        depths.append(depth)
        cells += until - depth
        pairs += (until - depth) * (until - depth + 1) // 2
        if b - a > 1:
            todo += [(-1, len(blocks) - 1, 0), (a, b, until)]
    return Packing(
        ids=_padded(pieces, cells, pad_to),
        positions=_padded(
            [np.arange(d, d + b.end - b.start) for d, b in zip(depths, blocks, strict=True)],
            cells,
            pad_to,
        ),
        blocks=tuple(blocks),
        where=tuple(where),
        useful=sum(len(row) for row in rows),
        pairs=pairs,
    )


def _runs(
    shared: Sequence[int], lengths: Sequence[int], first: int, end: int, depth: int
) -> list[tuple[int, int]]:
    """Neighbours among `first..end` that stay alike long enough after `depth`; rows that end there are done."""
    runs: list[tuple[int, int]] = []
    for i in range(first, end):
        if lengths[i] == depth:
            continue
        joined = bool(runs) and runs[-1][1] == i and shared[i - 1] >= depth + SHORTEST
        if joined:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def _alike(a: Ints, b: Ints) -> int:
    """How many tokens two rows begin with alike."""
    n = min(len(a), len(b))
    odd = np.flatnonzero(a[:n] != b[:n])
    return int(odd[0]) if len(odd) else n


def _padded(pieces: list[Ints], cells: int, pad_to: int) -> Ints:
    spare = -cells % pad_to
    return np.concatenate([*pieces, np.zeros(spare, dtype=np.int64)]).astype(np.int64)
