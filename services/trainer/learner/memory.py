"""The C library's memory in a process that trains on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # numbers of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Have freed memory kept for what is allocated next; returns whether this C library can.

    A step takes and frees gigabytes in blocks that the C library would fetch from the system, page by page, each time.
    Threads that have allocated before keep places of their own, so this is for the beginning of a process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
    done = [mallopt(option, value) == 1 for option, value in wanted]
    return all(done)


def give_back_memory() -> None:
    """Return what is free now to the system: between steps a learner needs its weights and its optimiser's state alone."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
