"""Sums over ranks in shared memory, with threads for ranks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import pytest
import torch

from services.trainer.shared_memory import SharedMemory

WAIT_S = 30.0
T = TypeVar("T")


class Table:
    """What ranks in threads agree by."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._barrier = Barrier(world, timeout=WAIT_S)
        self._said: dict[int, object] = {}

    def wait(self) -> None:
        self._barrier.wait()

    def exchange(self, rank: int, value: object) -> list[object]:
        self._said[rank] = value
        self.wait()
        found = [self._said[r] for r in range(self.world)]
        self.wait()
        return found

    def over(
        self, rank: int, folder: Path, piece: int, *, lost: bool = False
    ) -> SharedMemory | None:
        """The memory of a rank; one that is `lost` hears of a file that it does not see."""
        return SharedMemory.of(Rank(self, rank, lost=lost), folder=folder, piece=piece)

    def each(self, do: Callable[[int], T]) -> list[T]:
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(do, range(self.world)))


class Rank:
    """One of the table's ranks."""

    def __init__(self, table: Table, rank: int, *, lost: bool) -> None:
        self.rank, self.world = rank, table.world
        self._table, self._lost = table, lost

    def broadcast(self, text: str | None = None) -> str:
        found = str(self._table.exchange(self.rank, text or "")[0])
        return f"{found}-elsewhere" if self._lost and found else found

    def any(self, flag: bool) -> bool:
        return any(self._table.exchange(self.rank, flag))

    def barrier(self) -> None:
        self._table.wait()


def gradients(rank: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(rank)
    shapes = [(3,), (7, 11), (1,), (40, 5), (16,)]
    return [torch.randn(shape, generator=draw) for shape in shapes]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("piece", [1, 16, 293, 1000])
def test_every_rank_comes_to_the_same_bits_of_the_sum(
    tmp_path: Path, world: int, piece: int
) -> None:
    table = Table(world)

    def one(rank: int) -> list[torch.Tensor]:
        memory = table.over(rank, tmp_path, piece)
        assert memory is not None
        found = gradients(rank)
        for _ in range(2):  # the second sum is of sums
            memory.all_reduce(found)
        return found

    given = [gradients(rank) for rank in range(world)]
    wanted = [sum(tensors[1:], start=tensors[0]) * world for tensors in zip(*given, strict=True)]
    found = table.each(one)
    for mine in found:
        for got, first, want in zip(mine, found[0], wanted, strict=True):
            assert torch.equal(got, first)
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert not list(tmp_path.iterdir()), "nothing is left behind when a process dies"


def test_a_rank_that_does_not_see_the_memory_keeps_all_from_using_it(tmp_path: Path) -> None:
    table = Table(2)
    assert table.each(lambda rank: table.over(rank, tmp_path, 8, lost=rank == 1)) == [None, None]
    assert not list(tmp_path.iterdir())


def test_without_a_place_for_it_there_is_none(tmp_path: Path) -> None:
    table = Table(2)
    assert table.each(lambda rank: table.over(rank, tmp_path / "none", 8)) == [None, None]
    crowd = Table(9)  # each would read what all nine have written
    assert crowd.each(lambda rank: crowd.over(rank, tmp_path, 8)) == [None] * 9


def test_nothing_to_add_up_is_nothing_to_wait_for(tmp_path: Path) -> None:
    table = Table(2)
    memories = table.each(lambda rank: table.over(rank, tmp_path, 8))
    assert memories[0] is not None
    memories[0].all_reduce([])
