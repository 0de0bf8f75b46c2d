"""Rows into padded rectangles, for models that cannot be packed, and into the updates of a step. No row is dropped."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence


def micro_batches(lengths: Sequence[int], *, token_budget: int) -> list[list[int]]:
    """Group rows, by their numbers, into padded rectangles of at most `token_budget` cells (rows times width).

    Rows are taken longest first, so a rectangle is as wide as its first row and the rows in it are of similar length.
    A single row longer than the budget gets a rectangle of its own.
    """
    batches: list[list[int]] = []
    room = 0
    for row in sorted(range(len(lengths)), key=lambda r: (-lengths[r], r)):
        if room == 0:
            batches.append([])
            room = max(1, token_budget // lengths[row])
        batches[-1].append(row)
        room -= 1
    return batches


def minibatches(
    rows: int | Sequence[int],
    *,
    num_updates: int,
    seed: int,
    together: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """Split the rows of a step over its optimiser updates: shuffled, nearly equal, nothing left over.

    `rows` is how many there are, or the trained tokens of each (then the parts differ by at most the largest row in tokens).
    Where there are fewer rows than `num_updates` there are fewer parts. Rows with equal marks in `together` share a part.
    """
    sizes = [1] * rows if isinstance(rows, int) else list(rows)
    if together is not None:
        units: dict[Hashable, list[int]] = {}
        for row, mark in enumerate(together):
            units.setdefault(mark, []).append(row)
        members = list(units.values())
        loads = [sum(sizes[row] for row in unit) for unit in members]
        parts = minibatches(loads, num_updates=num_updates, seed=seed)
        return [[row for number in part for row in members[number]] for part in parts]
    order = list(range(len(sizes)))
    draw = random.Random(seed)  # noqa: S311 - a reproducible shuffle, not a secret
    draw.shuffle(order)
    order.sort(key=lambda row: -sizes[row])
    parts = [[] for _ in range(min(num_updates, len(sizes)))]
    loads = [0] * len(parts)
    for row in order:
        lightest = min(range(len(parts)), key=lambda p: (loads[p], len(parts[p]), p))
        parts[lightest].append(row)
        loads[lightest] += sizes[row]
    for part in parts:
        draw.shuffle(part)
    draw.shuffle(parts)
    return parts
