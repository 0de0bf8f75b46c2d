"""The pool of one run: training and held-out tasks of each kind."""

from __future__ import annotations

from collections.abc import Iterator

from environments.household.family import FAMILY
from experiments.settings import Settings
from triforge.types import PoolRequest, TaskUpload


def pool_request(settings: Settings, seed: int) -> PoolRequest:
    """Return the request that makes the pool of a seed."""
    return PoolRequest(
        name="pool",
        environment="household",
        options=dict(settings.options),
        tasks=tuple(_uploads(settings, seed)),
    )


def _uploads(settings: Settings, seed: int) -> Iterator[TaskUpload]:
    """Yield the tasks kind by kind, held-out ones first; no task twice."""
    seen: set[str] = set()
    for number, kind in enumerate(settings.pool()):
        need, made = kind.train + kind.heldout, 0
        generated = FAMILY.generate(
            count=3 * need, seed=1_000 * seed + number, options=dict(kind.options)
        )
        for params in generated:
            key = repr(sorted(params.items()))
            if made == need or key in seen:
                continue
            seen.add(key)
            yield TaskUpload(params=params, split="heldout" if made < kind.heldout else "train")
            made += 1
        if made < need:
            raise ValueError(f"only {made} different tasks of {need}; the options allow too few")
