"""The device of the figures: the GPU, or the CPU where there is none."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")


def synchronize() -> None:
    """Wait for what the device was given to do."""
    if GPU:
        torch.cuda.synchronize()


def peak_gib() -> float:
    """Most memory of the device that tensors took since `emptied`."""
    return torch.cuda.max_memory_allocated() / 2**30 if GPU else 0.0


def free() -> None:
    """Give back what no tensor holds."""
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()


@contextmanager
def emptied() -> Iterator[None]:
    """Empty the device before and after a case."""
    free()  # also what a case that failed has left
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        free()


@contextmanager
def timed(into: dict[str, float], name: str) -> Iterator[None]:
    """Seconds of what is done inside, with the device's work."""
    synchronize()
    started = time.perf_counter()
    yield
    synchronize()
    into[name] = time.perf_counter() - started
