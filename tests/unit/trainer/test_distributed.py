"""Which forward passes a rank computes, and how ranks hear that one of them was told to stop. No process group is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.distributed import Interrupted, Ranks
from services.trainer.token_batches import Sequences, passes

CPU = torch.device("cpu")
Board = list[list[bool]]


class Seat(Ranks):
    """One of several ranks; all of them write what they were told on one board."""

    def __init__(self, rank: int, board: Board, *, world: int = 2, shards: bool = False) -> None:
        super().__init__(CPU)
        self.rank, self.world, self.shards = rank, world, shards
        self._board, self._asked = board, 0

    def _ask(self, flag: bool) -> Callable[[], bool]:
        number, self._asked = self._asked, self._asked + 1
        while len(self._board) <= number:
            self._board.append([])
        self._board[number].append(flag)

        def answer() -> bool:
            assert len(self._board[number]) == self.world, "it would wait for another rank"
            return any(self._board[number])

        return answer


class Silent(Seat):
    """One to whom nobody says anything."""

    def _ask(self, flag: bool) -> Callable[[], bool]:
        return lambda: flag


def sequences(lengths: Sequence[int]) -> Sequences:
    rows = [np.full(length + 1, n, dtype=np.int64) for n, length in enumerate(lengths)]
    return Sequences(rows, [np.arange(1, len(row)) for row in rows])


def never() -> bool:
    return False


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.integers(1, 100),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_every_row_counts_once_on_one_rank(
    lengths: list[int], budget: int, world: int, packed: bool, shards: bool
) -> None:
    rows = list(range(len(lengths)))
    plan = passes(rows, sequences(lengths), budget, packed=packed, ranks=world)
    counted: list[int] = []
    for rank in range(world):
        share = list(Silent(rank, [], world=world, shards=shards).passes(plan, never))
        assert all(found for found, _, _ in share)
        assert [last for *_, last in share if last] == [True] * (len(share) * world == len(plan))
        counted += [row for found, counts, _ in share if counts for row in found]
    assert sorted(counted) == rows


@pytest.mark.parametrize("packed", [True, False])
def test_ranks_have_about_as_much_to_do(packed: bool) -> None:
    lengths = [5 + 7 * n % 90 for n in range(60)]
    made = sequences(lengths)
    for world in (2, 3, 4):
        plan = passes(list(range(60)), made, 200, packed=packed, ranks=world)
        work = [sum(lengths[r] for rows in plan[k::world] for r in rows) for k in range(world)]
        assert max(work) < 1.06 * min(work)


def test_ranks_that_shard_a_model_have_equally_many_passes_the_last_ones_of_a_row() -> None:
    plan = [[4, 5], [0, 1], [2, 3], []]
    for shards, wanted in (
        (False, [([0, 1], True, False)]),
        (True, [([0, 1], True, False), ([4], False, True)]),
    ):
        board: Board = [[False], [False]]
        assert list(Seat(1, board, shards=shards).passes(plan, never)) == wanted


def test_all_ranks_stop_at_the_same_place_a_pass_after_one_was_told() -> None:
    plan = [[n] for n in range(12)]
    board: Board = []
    told = iter([False, False, True, True])
    shares = [Seat(0, board).passes(plan, lambda: next(told)), Seat(1, board).passes(plan, never)]
    seen = [[next(share)[0] for share in shares] for _ in range(3)]
    assert seen == [[[0], [1]], [[2], [3]], [[4], [5]]]
    for share in shares:
        with pytest.raises(Interrupted):
            next(share)


def test_what_was_said_at_the_last_pass_is_heard_at_its_end() -> None:
    board: Board = [[True]]
    own = Seat(1, board).passes([[0], [1]], never)
    assert next(own)[0] == [1]
    with pytest.raises(Interrupted):
        next(own)


def test_one_rank_hears_at_once() -> None:
    told = iter([False, True])
    own = Ranks(CPU).passes([[0], [1]], lambda: next(told))
    assert next(own)[0] == [0]
    with pytest.raises(Interrupted):
        next(own)
