"""Seeds that follow from other seeds, the same on every machine and in every process."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**31) that depends on all parts and on their order, and on nothing else."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF


def nth_seed(seed: int, number: int, within: int | None = None) -> int:
    """The seed of a numbered thing of a run, and of a numbered thing within that.

    Different for all numbers below a million, and within them below ten thousand, of runs with other seeds. It is no digest
    because the reports of the experiments were drawn with it; whatever is new takes `derive_seed`.
    """
    found = seed * 1_000_003 + number
    return found if within is None else found * 10_007 + within


def sample_seed(seed: int, number: int) -> int:
    """The seed of the `number`-th sample, from 0, of a prompt; others for up to 2^31 samples, as the step is odd."""
    return (seed + number * 0x9E3779B1) & 0x7FFF_FFFF
