"""Rows that begin alike: every token of every row sees exactly what stands before it, and little is computed twice."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from triforge.algorithms.prefix_tree import SHORTEST, Packing, pack

PROMPT = list(range(100, 100 + 40))


def rows_of(*lists: Sequence[int]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.int64) for row in lists]


@st.composite
def families(draw) -> list[np.ndarray]:
    """Rows that are beginnings of each other, with tails of their own."""
    rows: list[list[int]] = []
    for _ in range(draw(st.integers(1, 8))):
        if rows and draw(st.booleans()):
            parent = draw(st.sampled_from(rows))
            start = parent[: draw(st.integers(0, len(parent)))]
        else:
            start = []
        tail = draw(st.integers(0 if start else 1, 45))
        rows.append(start + draw(st.lists(st.integers(0, 1), min_size=tail, max_size=tail)))
    return rows_of(*rows)


def seen(packing: Packing, cell: int) -> list[int]:
    """The cells that a cell sees, by the rule of `Packing.blocks`."""
    found: list[int] = []
    for start, end, last in packing.blocks:
        if start <= cell < end:
            found += range(start, cell + 1)
        elif end <= cell < last:
            found += range(start, end)
    return found


@given(families())
def test_every_token_sees_exactly_what_stands_before_it_in_its_row(rows):
    packing = pack(rows)
    for row, where in zip(rows, packing.where, strict=True):
        assert (packing.ids[where] == row).all()
        assert (packing.positions[where] == np.arange(len(row))).all()
        for place, cell in enumerate(where):
            assert seen(packing, cell) == list(where[: place + 1])
    assert sum(len(seen(packing, c)) for c in range(len(packing.ids))) == packing.pairs
    assert packing.useful == sum(map(len, rows))


def test_a_prompt_is_computed_once_however_many_votes_there_are():
    rows = rows_of(*[[*PROMPT, 7, vote] for vote in range(9)])
    packing = pack(rows)
    assert len(packing.ids) == len(PROMPT) + 1 + 9
    assert packing.blocks[0] == (0, len(PROMPT) + 1, len(packing.ids))


def test_beginnings_that_are_hardly_worth_a_block_are_computed_again():
    short = PROMPT[: SHORTEST - 1]
    assert len(pack(rows_of([*short, 1], [*short, 2])).ids) == 2 * SHORTEST


def test_cells_that_fill_up_belong_to_no_block():
    packing = pack(rows_of([5, 6, 7]), pad_to=8)
    assert len(packing.ids) == len(packing.positions) == 8
    assert packing.blocks == ((0, 3, 3),)


def test_a_chain_of_thousand_beginnings_is_no_recursion():
    chain = np.arange(20_000, dtype=np.int64)
    packing = pack([chain[: 20 * n] for n in range(1, 1001)])
    assert len(packing.ids) == 20_000
