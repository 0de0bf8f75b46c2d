"""The sum over the ranks of one machine, through memory that all of them see.

Two CPU ranks train 1.8 times as fast as one with it, and 1.6 times with all-reduce over sockets, which copies each byte
several times.

    round n     write my piece ─► barrier ─► add up the places of all ranks, in their order

All ranks add in the same order, so they come to the same bits. Two places a rank are used in turn: who has passed the
barrier of round n + 1 knows that all have read round n.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

_PIECE = 1 << 21  # numbers of a place: 8 MiB, still in the cache when it is read
_MOST = 8  # ranks; each reads what all have written
_MEMORY = Path("/dev/shm")  # noqa: S108 (a file there is memory; it is unlinked as soon as all have opened it)


class Group(Protocol):
    """The ranks."""

    rank: int
    world: int

    def broadcast(self, text: str | None = None) -> str:
        """The text of rank 0, on every rank."""

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""


class SharedMemory:
    """The places of all ranks, float32 [2, ranks, piece]."""

    def __init__(self, places: Tensor, group: Group) -> None:
        self._places, self._group, self._turn = places, group, 0

    @staticmethod
    def of(group: Group, *, folder: Path = _MEMORY, piece: int = _PIECE) -> SharedMemory | None:
        """The memory of some ranks, or None on all of them if one has none: another machine, or too little of it."""
        size = 2 * group.world * piece * 4
        name, held = "", None
        if group.rank == 0 and group.world <= _MOST:
            with contextlib.suppress(OSError):
                name = _make(folder, size)
        name = group.broadcast(name)
        if name:
            with contextlib.suppress(OSError, ValueError), Path(name).open("r+b") as file:
                held = mmap.mmap(file.fileno(), size)
        failed = group.any(held is None)
        if group.rank == 0 and name:
            with contextlib.suppress(OSError):
                Path(name).unlink()  # the memory stays as long as a rank holds it, and not longer
        if failed or held is None:
            return None
        places = torch.frombuffer(held, dtype=torch.float32).view(2, group.world, piece)
        return SharedMemory(places, group)

    @torch.no_grad()
    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Tensors become their sum over the ranks, in place: float32, contiguous, as many and as large on every rank."""
        for parts in _rounds(tensors, self._places.shape[2]):
            place = self._places[self._turn]
            self._turn = 1 - self._turn
            begin = 0
            for part in parts:
                place[self._group.rank, begin : begin + len(part)] = part
                begin += len(part)
            self._group.barrier()
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
        os.posix_fallocate(handle, 0, size)  # writing into a file with holes may end the process
    except OSError:
        Path(name).unlink()
        raise
    finally:
        os.close(handle)
    return name


def _rounds(tensors: Sequence[Tensor], piece: int) -> Iterator[list[Tensor]]:
    """Flat parts of the tensors, in order, together at most a piece each time."""
    parts: list[Tensor] = []
    left = piece
    for tensor in tensors:
        flat = tensor.view(-1)
        while len(flat):
            parts.append(flat[:left])
            flat, left = flat[left:], left - len(parts[-1])
            if not left:
                yield parts
                parts, left = [], piece
    if parts:
        yield parts
