from __future__ import annotations

from itertools import takewhile

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.local_engine.prefix_cache import PrefixCache


def cells(ids: list[int]) -> Tensor:
    """Fake keys and values that can be recognised: the running hash of the prefix."""
    found, state = [], 1
    for i in ids:
        state = (state * 31 + i + 1) % 1_000_003
        found.append(float(state))
    return torch.tensor(found).view(1, -1, 1, 1, 1).expand(1, -1, 2, 1, 1).clone()


def add(cache: PrefixCache, ids: list[int]) -> None:
    start, _ = cache.match(ids, len(ids))
    cache.insert(ids, start, cells(ids)[:, start:])


def test_the_least_recently_used_prefix_is_dropped_first() -> None:
    cache = PrefixCache(16)
    for head in (1, 2, 3):
        add(cache, [head] * 5)
    cache.match([1] * 5, 5)
    add(cache, [4] * 5)
    assert [cache.match([head] * 5, 5)[0] for head in (1, 2, 3, 4)] == [5, 0, 0, 5]
    assert cache.tokens == 10


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=25)


@given(PATHS, PATHS, st.sampled_from([4, 9, 20, 40, 200]))
def test_match_returns_cells(rows: list[list[int]], queries: list[list[int]], budget: int) -> None:
    cache = PrefixCache(budget)
    for ids in rows:
        add(cache, ids)
        assert cache.tokens <= budget
    for ids in rows + queries:
        found, pieces = cache.match(ids, len(ids))
        if found:
            assert torch.equal(torch.cat(pieces, dim=1), cells(ids)[:, :found])
        if budget == 200:  # nothing was dropped
            common = (
                sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(ids, r, strict=False)))
                for r in rows
            )
            assert found == max(common, default=0)
