"""The memory of a process that trains on a CPU.

A step takes and frees gigabytes, in blocks so large that the C library fetches each from the system and hands it back at once.
Every page that comes anew is a fault, and is filled with zeros first.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # numbers of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Have freed memory kept for what is allocated next, by all threads; returns whether this C library can.

    Threads that have allocated before keep places of their own, so this is for the beginning of a process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
    done = [mallopt(option, value) == 1 for option, value in wanted]
    return all(done)


def give_back_memory() -> None:
    """Hand to the system what is free now: a learner that waits needs no more than its weights and its optimiser's state."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
