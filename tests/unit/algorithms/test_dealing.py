"""Rows over forward passes and ranks: none is lost, no pass is too large, and ranks have about the same work."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triforge.algorithms.dealing import Deal, Price, deal, spread
from triforge.algorithms.prefix_tree import Order, pack

PASS = 32  # a pass costs a 32nd of the budget


def group(mark: int, prompt: int, answers: Sequence[int]) -> list[np.ndarray]:
    """Answers of some lengths, none beginning like another, to one prompt."""
    return [
        np.array([mark] * prompt + [1000 + n] * length, dtype=np.int64)
        for n, length in enumerate(answers)
    ]


def cells(rows: Sequence[np.ndarray], part: Sequence[int]) -> int:
    return pack([rows[r] for r in part]).blocks[-1].end


def work(rows: Sequence[np.ndarray], dealt: Deal) -> int:
    return sum(cells(rows, part) for part in dealt.passes)


def dealt(rows: Sequence[np.ndarray], budget: int, ranks: int = 1, **price: float) -> list[Deal]:
    return deal(
        Order(rows), [1] * len(rows), token_budget=budget, ranks=ranks, price=Price(**price)
    )


@st.composite
def trees(draw: st.DrawFn) -> list[np.ndarray]:
    """Rows that go on from beginnings of each other."""
    rows: list[list[int]] = []
    for _ in range(draw(st.integers(1, 12))):
        start: list[int] = []
        goes_on = draw(st.booleans())
        if rows and goes_on:
            start = draw(st.sampled_from(rows))
        start = start[: draw(st.integers(0, len(start)))]
        tail = draw(st.integers(0 if start else 1, 45))
        rows.append(start + draw(st.lists(st.integers(0, 1), min_size=tail, max_size=tail)))
    return [np.array(row, dtype=np.int64) for row in rows]


@given(trees(), st.integers(1, 200), st.integers(1, 4))
def test_passes_hold_every_row_once_within_the_budget(
    rows: list[np.ndarray], budget: int, ranks: int
) -> None:
    found = dealt(rows, budget, ranks, pair=1e-3, scored=0.3)
    assert len(found) == ranks
    everything = [r for one in found for part in one.passes for r in part]
    assert sorted(everything) == list(range(len(rows)))
    for one in found:
        assert all(cells(rows, part) <= max(budget, *map(len, rows)) for part in one.passes)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(2, 5))
def test_no_rank_has_more_to_do_than_another_by_more_than_a_row_or_two(
    lengths: list[int], ranks: int
) -> None:
    rows = [np.full(length, n, dtype=np.int64) for n, length in enumerate(lengths)]
    costs = [one.cost for one in dealt(rows, 512, ranks)]
    assert max(costs) <= 1.05 * min(costs) + 2 * (max(lengths) + 512 / PASS)


def test_groups_that_can_be_dealt_evenly_are_not_cut() -> None:
    rows = [row for n in range(6) for row in group(n, 200, [20, 40, 60 + 10 * n])]
    whole = cells(rows, range(len(rows)))
    one, two, three = (dealt(rows, 700, ranks) for ranks in (1, 2, 3))
    for found in (one, two, three):
        assert sum(work(rows, d) for d in found) == whole
        mean = sum(d.cost for d in found) / len(found)
        assert max(d.cost for d in found) < 1.1 * mean


def test_a_pass_is_filled_to_its_last_cell_with_a_group_that_just_fits() -> None:
    rows = group(7, 434, [100, 90, 80, 70, 60, 50, 40, 100])
    assert [cells(rows, part) for part in dealt(rows, 1024)[0].passes] == [1024]
    assert len(dealt(rows, 1023)[0].passes) == 2


def test_one_group_is_cut_over_ranks_although_its_prompt_is_then_computed_twice() -> None:
    rows = group(1, 100, [50] * 8)
    found = dealt(rows, 1000, 2)
    assert [work(rows, d) for d in found] == [300, 300]


def test_a_cut_that_shortens_nothing_is_not_made() -> None:
    rows = group(1, 900, [1] * 8)  # two ranks would compute 904 cells each instead of one 908
    assert sorted(len(d.passes) for d in dealt(rows, 1000, 2)) == [0, 1]


def test_scored_tokens_and_long_rows_weigh_as_much_as_they_cost() -> None:
    rows = [
        np.full(length, n, dtype=np.int64) for n, length in enumerate([400, 100, 100, 100, 100])
    ]
    by_cells = dealt(rows, 400, 2)
    assert sorted(sum(map(len, d.passes)) for d in by_cells) == [1, 4]
    by_pairs = dealt(rows, 400, 2, pair=1.0)  # the long row costs four times as much as all others
    assert by_pairs[0].passes == [[0]]
    assert by_pairs[0].cost > 3 * by_pairs[1].cost
    order = Order(rows[1:])
    (left, right) = deal(order, [300, 1, 1, 1], token_budget=100, ranks=2, price=Price(scored=1.0))
    assert left.passes == [[0]], "what is scored most is by itself"
    assert len(right.passes) == 3


@given(
    st.lists(
        st.tuples(st.integers(16, 80), st.lists(st.integers(1, 40), min_size=1, max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_no_other_cuts_of_the_line_are_cheaper(groups: list[tuple[int, list[int]]]) -> None:
    rows = [row for n, (prompt, own) in enumerate(groups) for row in group(n, prompt, own)]
    budget = 150
    line = Order(rows).order

    def price(cuts: Sequence[int]) -> float:
        parts = [line[a:b] for a, b in itertools.pairwise([0, *cuts, len(line)])]
        sizes = [cells(rows, part) for part in parts]
        return sum(sizes) + len(sizes) * budget / PASS if max(sizes) <= budget else float("inf")

    places = range(1, len(line))
    every = [c for n in range(len(line)) for c in itertools.combinations(places, n)]
    assert dealt(rows, budget)[0].cost == pytest.approx(min(map(price, every)))


def test_a_step_of_thousands_of_rows_is_dealt_evenly() -> None:
    draw = np.random.default_rng(0)
    groups = [(int(draw.integers(150, 450)), draw.integers(8, 256, 8).tolist()) for _ in range(256)]
    rows = [row for n, (prompt, own) in enumerate(groups) for row in group(n, prompt, own)]
    found = dealt(rows, 2048, 8)
    costs = [one.cost for one in found]
    assert max(costs) < 1.02 * sum(costs) / 8
    assert sum(costs) < 1.03 * dealt(rows, 2048)[0].cost


def test_the_dearest_comes_first() -> None:
    assert spread([1.0, 5.0, 3.0, 3.0], 2) == [[1, 0], [2, 3]]
    rows = [row for n in range(4) for row in group(n, 100 + 40 * n, [30, 30])]
    for one in dealt(rows, 300, 2):
        sizes = [cells(rows, part) for part in one.passes]
        assert sizes == sorted(sizes, reverse=True)


def test_no_rows_are_no_passes() -> None:
    assert dealt([], 10, 2) == [Deal([], 0.0), Deal([], 0.0)]
