"""Assignment of packed rows to forward passes, and of passes to ranks.

    rows in tree order     a a a a | b b | c c c c c | d d      a letter: rows that begin alike
    passes                 [a a a a] [b b] [c c c] [c c] [d d]
    ranks                  0: [c c c] [b b] [d d]   1: [a a a a] [c c]

A pass is a consecutive part of the line. A cut inside a letter computes the shared beginning twice, so the line is cut where
that costs least, and as rarely as the budget allows. With several ranks, the most expensive passes are assigned first, each
to the rank with the least work. Shorter passes balance better and recompute more: several lengths are tried, and the one
that finishes first is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

from triforge.algorithms.prefix_tree import SHORTEST, Order

_PASS = 32  # what a pass costs by itself (its gradients are added up, its kernels are small) is a budget over this
# shares of the budget, the lengths of stretches that are tried
_SHORTER = [0.85**n for n in range(24)]
_AGAIN = 0.02  # weight of the ranks' mean cost relative to the busiest rank's


class Price(NamedTuple):
    """Cost of a (token, token it sees) pair and of a scored token, relative to one cell in a model's blocks."""

    pair: float = 0.0
    scored: float = 0.0

    def way(self, length: int) -> float:
        """Return the cost of a row's first tokens."""
        return length + self.pair * length * length / 2


class Piece(NamedTuple):
    """Rows `first..end` of a line, end excluded."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Deal:
    """Work of a rank: the rows of each pass, most expensive pass first, and their cost."""

    passes: list[list[int]]
    cost: float


class _Line:
    """Rows in tree order; each knows the first `known` of its tokens from the row before it. `a_pass` is what a pass costs by itself."""

    def __init__(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        known: Sequence[int],
        scored: Sequence[int],
        price: Price,
        a_pass: float,
    ) -> None:
        self.rows, self._lengths, self._known, self._scored = rows, lengths, known, scored
        self._price, self._a_pass = price, a_pass
        self._free = _surely_free(known)
        own = [length - free for length, free in zip(lengths, self._free, strict=True)]
        self._held = [0, *accumulate(own)]
        self._again = [price.way(free) for free in self._free]
        paid = [
            price.way(length) - again + price.scored * wanted
            for length, again, wanted in zip(lengths, self._again, scored, strict=True)
        ]
        self._paid = [0.0, *accumulate(paid)]

    def cost(self, piece: Piece) -> float:
        """Return the cost of a pass of these rows."""
        first, end = piece
        return self._paid[end] - self._paid[first] + self._again[first] + self._a_pass

    def cut(self, cap: int) -> list[Piece]:
        """Return the cheapest passes of at most `cap` cells, in order; no single row exceeds `cap`.

        Dynamic programming: all rows but the first of a pass cost the same wherever the pass begins, so the best cut before
        `end` minimises the cost so far plus the recomputation there.
        """
        best, begins = [0.0], [0]
        open_: deque[tuple[int, float]] = deque()
        for end in range(1, len(self.rows) + 1):
            here = best[end - 1] + self._again[end - 1]
            while open_ and open_[-1][1] >= here:
                open_.pop()
            open_.append((end - 1, here))
            while self._held[end] - self._held[open_[0][0]] + self._free[open_[0][0]] > cap:
                open_.popleft()
            begins.append(open_[0][0])
            best.append(open_[0][1] + self._a_pass)
        found: list[Piece] = []
        end = len(self.rows)
        while end:
            found.append(Piece(begins[end], end))
            end = begins[end]
        return found[::-1]

    def only(self, pieces: Sequence[Piece]) -> _Line:
        """Return the line of some of its pieces."""
        places = [place for first, end in sorted(pieces) for place in range(first, end)]
        known = [0] * len(places)
        for n in range(1, len(places)):
            known[n] = min(self._known[places[n - 1] + 1 : places[n] + 1])
        rows, lengths, scored = (
            [values[place] for place in places]
            for values in (self.rows, self._lengths, self._scored)
        )
        return _Line(rows, lengths, known, scored, self._price, self._a_pass)

    def deal(self, cap: int) -> Deal:
        """All of it as the work of one rank."""
        pieces = sorted(self.cut(cap), key=lambda piece: -self.cost(piece))
        passes = [list(self.rows[first:end]) for first, end in pieces]
        return Deal(passes, sum(map(self.cost, pieces)))


def _surely_free(known: Sequence[int]) -> list[int]:
    """Return how many shared tokens of each row are never computed twice in a pass that holds the row before it, too.

    A shared beginning ends where rows branch. If another branch lies less than SHORTEST tokens before, the tokens between
    are computed again.
    """
    found: list[int] = []
    for alike, family in groupby(known, key=lambda k: k >= SHORTEST):
        own = list(family)
        if not alike:
            found += [0] * len(own)
            continue
        branches = sorted(set(own))
        found += [branches[bisect_left(branches, k - SHORTEST + 1)] for k in own]
    return found


def deal(
    order: Order,
    scored: Sequence[int],
    *,
    token_budget: int,
    ranks: int = 1,
    price: Price = Price(),  # noqa: B008 (frozen)
) -> list[Deal]:
    """Split rows into forward passes, and those over the ranks, about equally dear; every row once.

    `scored` are, by row, the tokens whose log-probability is wanted. Rows longer than `token_budget` cells widen it to their
    length. A rank may be left without any: there are few rows, or what they share is nearly all of them.
    """
    if not order.order:
        return [Deal([], 0.0) for _ in range(ranks)]
    longest = max(order.lengths)
    cap = max(token_budget, longest)
    wanted = [scored[row] for row in order.order]
    known = [0, *order.shared]
    line = _Line(order.order, order.lengths, known, wanted, price, token_budget / _PASS)
    if ranks == 1:
        return [line.deal(cap)]
    caps = {max(int(cap * share), longest) for share in _SHORTER}
    return min((_dealt(line, c, cap, ranks) for c in sorted(caps, reverse=True)), key=_ends)


def _dealt(line: _Line, stretch: int, cap: int, ranks: int) -> list[Deal]:
    """Stretches of at most so many cells dealt out to the ranks, and each rank's made passes of."""
    pieces = line.cut(stretch)
    parts = spread([line.cost(piece) for piece in pieces], ranks)
    return [line.only([pieces[n] for n in part]).deal(cap) for part in parts]


def _ends(deals: Sequence[Deal]) -> float:
    costs = [one.cost for one in deals]
    return max(costs) + _AGAIN * sum(costs) / len(costs)


def spread(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Numbers of the costs that each rank takes: the dearest first, always the rank that has least."""
    loads = [0.0] * ranks
    found: list[list[int]] = [[] for _ in range(ranks)]
    for n in sorted(range(len(costs)), key=lambda n: (-costs[n], n)):
        least = min(range(ranks), key=lambda r: (loads[r], r))
        loads[least] += costs[n]
        found[least].append(n)
    return found
