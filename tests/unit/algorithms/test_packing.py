"""Rectangles and updates: every row exactly once."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from triforge.algorithms.packing import micro_batches, minibatches

lengths = st.lists(st.integers(1, 40), max_size=40)


def test_rows_of_similar_length_share_a_rectangle():
    assert micro_batches([3, 10, 4, 9, 1], token_budget=20) == [[1, 3], [2, 0, 4]]


@given(lengths, st.integers(1, 120))
def test_every_row_is_packed_once_within_the_budget(sizes, budget):
    batches = micro_batches(sizes, token_budget=budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(sizes[row] for row in batch) <= budget
    assert batches == micro_batches(sizes, token_budget=budget)


@given(lengths.filter(bool), st.integers(40, 400))
def test_no_two_neighbouring_rectangles_could_have_been_one(sizes, budget):
    batches = micro_batches(sizes, token_budget=budget)
    for left, right in itertools.pairwise(batches):
        assert (len(left) + 1) * sizes[left[0]] > budget
        assert sizes[left[-1]] >= sizes[right[0]]


@given(st.integers(0, 60), st.integers(1, 8), st.integers(0, 5))
def test_parts_differ_by_at_most_one_row(rows, updates, seed):
    parts = minibatches(rows, num_updates=updates, seed=seed)
    assert sorted(row for part in parts for row in part) == list(range(rows))
    assert len(parts) == min(rows, updates)
    sizes = [len(part) for part in parts]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 6), st.integers(0, 5))
def test_parts_differ_by_at_most_the_largest_row_in_tokens(tokens, updates, seed):
    parts = minibatches(tokens, num_updates=updates, seed=seed)
    assert sorted(row for part in parts for row in part) == list(range(len(tokens)))
    loads = [sum(tokens[row] for row in part) for part in parts]
    assert all(parts)
    assert max(loads, default=0) - min(loads, default=0) <= max(tokens, default=0)


def test_the_seed_decides_the_split():
    assert minibatches(20, num_updates=4, seed=3) == minibatches(20, num_updates=4, seed=3)
    assert minibatches(20, num_updates=4, seed=3) != minibatches(20, num_updates=4, seed=4)


def test_the_largest_row_may_land_in_any_update():
    first = [0 in minibatches([9, 4, 3, 2], num_updates=2, seed=seed)[0] for seed in range(20)]
    assert True in first
    assert False in first


def test_rows_that_belong_together_share_an_update():
    marks = ["a", "b", "a", "c", "b", "a"]
    parts = minibatches([5, 1, 5, 2, 1, 5], num_updates=2, seed=1, together=marks)
    assert sorted(map(sorted, parts)) == [[0, 2, 5], [1, 3, 4]]
    assert len(minibatches(6, num_updates=4, seed=1, together=marks)) == 3
