"""The C library's memory in a process that trains on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # numbers of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory; return whether this C library supports it.

    A step allocates and frees gigabytes, which the C library would otherwise fetch from the system page by page each time.
    Call it at the beginning of a process: threads that have allocated before keep arenas of their own.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))
    done = [mallopt(option, value) == 1 for option, value in wanted]
    return all(done)


def give_back_memory() -> None:
    """Return free memory to the system: between steps a learner needs only its weights and optimiser state."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
