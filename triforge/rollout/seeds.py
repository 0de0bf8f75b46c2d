"""Seeds that follow from other seeds, the same on every machine and in every process."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**31) that depends on all parts and their order, and on nothing else."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF


def nth_seed(seed: int, number: int, within: int | None = None) -> int:
    """Return the seed of a numbered item of a run, and of a numbered item within it.

    The seeds differ for all numbers below a million, within them below ten thousand, and for runs with other seeds. The
    reports of the experiments were drawn with this formula; new code uses `derive_seed`.
    """
    numbered = seed * 1_000_003 + number
    return numbered if within is None else numbered * 10_007 + within


def sample_seed(seed: int, number: int) -> int:
    """Return the seed of the `number`-th sample of a prompt, from 0; 2^31 samples differ, because the step is odd."""
    return (seed + number * 0x9E3779B1) & 0x7FFF_FFFF
