"""Sums over the ranks of one machine, through memory that all of them see.

Gradients of a whole model are large, and a connection between two processes copies each byte several times. Here every rank
writes a piece of its numbers into a place of its own and reads the places of all of them:

    round n     write my piece ─► wait for all ─► add up the places, in the order of the ranks

All ranks add in the same order, so they come to the same bits. Places are used in turn, two of them: whoever has waited in
round n + 1 knows that all others have read round n, so its place is free in round n + 2.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

_PIECE = (
    1 << 21
)  # numbers of a place: 8 MiB, so that what is written is still in the cache when it is read
_MOST = 8  # ranks; each reads what all have written
_MEMORY = Path("/dev/shm")  # noqa: S108 (a file there is memory; it is unlinked as soon as all have opened it)


class CommonMemory:
    """Places of all ranks.

    Args:
        places: float32 [2, ranks, piece], the same memory on every rank.
        rank: of this process.
        wait: returns when all ranks have called it.
    """

    def __init__(self, places: Tensor, rank: int, wait: Callable[[], None]) -> None:
        self._places, self._rank, self._wait = places, rank, wait
        self._turn = 0

    @staticmethod
    def over(
        rank: int,
        world: int,
        *,
        tell: Callable[[str], str],
        any_of: Callable[[bool], bool],
        wait: Callable[[], None],
        folder: Path = _MEMORY,
        piece: int = _PIECE,
    ) -> CommonMemory | None:
        """The memory of some ranks, or None on all of them if one of them has none: another machine, or too little service.

        Args:
            rank: of this process.
            world: how many there are.
            tell: the word of rank 0, on every rank.
            any_of: whether any rank says so.
            wait: see the class.
            folder: files in it are memory.
            piece: numbers of a place.
        """
        size = 2 * world * piece * 4
        name, held = "", None
        if rank == 0 and world <= _MOST:
            with contextlib.suppress(OSError):
                name = _make(folder, size)
        name = tell(name)
        if name:
            with contextlib.suppress(OSError, ValueError):
                held = _open(name, size)
        failed = any_of(held is None)
        if rank == 0 and name:
            with contextlib.suppress(OSError):
                Path(name).unlink()  # the memory stays as long as a rank holds it, and not longer
        if failed or held is None:
            return None
        places = torch.frombuffer(held, dtype=torch.float32).view(2, world, piece)
        return CommonMemory(places, rank, wait)

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Tensors become their sum over the ranks, in place: float32, contiguous, as many and as large on every rank."""
        for parts in _rounds(tensors, self._places.shape[2]):
            place = self._places[self._turn]
            self._turn = 1 - self._turn
            begin = 0
            for part in parts:
                place[self._rank, begin : begin + len(part)] = part
                begin += len(part)
            self._wait()
            begin = 0
            for part in parts:
                given = place[:, begin : begin + len(part)]
                torch.add(given[0], given[1], out=part)
                for more in given[2:]:
                    part += more
                begin += len(part)


def _make(folder: Path, size: int) -> str:
    """A new file of so many bytes, all of them there."""
    handle, name = tempfile.mkstemp(prefix="triforge-ranks-", dir=folder)
    try:
        os.posix_fallocate(
            handle, 0, size
        )  # a file with holes would end the process that writes into one
    except OSError:
        Path(name).unlink()
        raise
    finally:
        os.close(handle)
    return name


def _open(name: str, size: int) -> mmap.mmap:
    with Path(name).open("r+b") as file:
        return mmap.mmap(file.fileno(), size)


def _rounds(tensors: Sequence[Tensor], piece: int) -> Iterator[list[Tensor]]:
    """Flat parts of the tensors, in order, together at most a piece each time."""
    parts: list[Tensor] = []
    service = piece
    for tensor in tensors:
        flat = tensor.view(-1)
        begin = 0
        while begin < len(flat):
            part = flat[begin : begin + service]
            parts.append(part)
            begin, service = begin + len(part), service - len(part)
            if not service:
                yield parts
                parts, service = [], piece
    if parts:
        yield parts
