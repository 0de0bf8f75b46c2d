"""Arithmetic of the auxiliary objectives: their losses, and the draw of transitions.

    L(t) = L_RL + w_sp(t) * L_sp + w_id(t) * L_id

State prediction (sp) reads a state and an action and predicts the next observation; inverse dynamics (id) reads two
observations and predicts the action between them. Both are supervised on all that the run itself played, because the
answers of an environment do not depend on the outcome.

Source of the sum: EnvRL, arXiv 2606.17680; the draw and the caps are ours. The weights over time:
`triforge.algorithms.schedules.scheduled_weight`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

from array_api_compat import array_namespace

from triforge.errors import InputError

Array = Any
K = TypeVar("K", bound=Hashable)

_CLIP = 0.99


def cross_entropy(logprobs: Array) -> Array:
    """Return `-log p` a token, in nats."""
    return -logprobs


def clipped_mae(logprobs: Array) -> Array:
    """Return `min(1 - p, 0.99)` a token: an unpredictable token has no gradient and cannot dominate."""
    xp = array_namespace(logprobs)
    missed = 1.0 - xp.exp(logprobs)
    return xp.where(missed > _CLIP, xp.full_like(missed, _CLIP), missed)


LOSSES = {"ce": cross_entropy, "clipped_mae": clipped_mae}


def draw_evenly(
    tasks: Sequence[K], idle: Sequence[bool], *, limit: int, idle_cap: float, seed: int
) -> list[int]:
    """Draw transitions evenly over tasks, so that the long failures of a few do not fill the batch.

    Tasks take turns; in its turn a task gives one of its remaining transitions, drawn at random. In the last round, which
    not all tasks reach, the tasks are drawn at random too. Same arguments, same draw.

    Args:
        idle: whether the transition changed nothing.
        idle_cap: largest share of idle transitions among those drawn, in [0, 1].
    """
    draw = random.Random(seed)  # noqa: S311 (a reproducible draw, not a secret)
    heaps: dict[K, list[int]] = {}
    for number, task in enumerate(tasks):
        heaps.setdefault(task, []).append(number)
    for heap in heaps.values():
        draw.shuffle(heap)
    most = math.floor(idle_cap * limit + 1e-9)
    busy: list[int] = []
    lazy: list[int] = []
    turns = list(heaps.values())
    while turns and len(busy) + len(lazy) < limit:
        draw.shuffle(turns)
        for heap in turns:
            while heap and idle[heap[-1]] and len(lazy) >= most:
                heap.pop()
            if heap and len(busy) + len(lazy) < limit:
                number = heap.pop()
                (lazy if idle[number] else busy).append(number)
        turns = [heap for heap in turns if heap]
    while lazy and len(lazy) > idle_cap * (len(busy) + len(lazy)) + 1e-9:
        lazy.pop()
    return sorted(busy + lazy)


def displaced(count: int, *, seed: int) -> list[int]:
    """Return a random order in which no place keeps its own: one cycle through all (Sattolo).

    The placebo gives transition i the target of transition `displaced(n)[i]`. Fewer than two have no such order.
    """
    if count < 2:
        raise InputError(f"count: given {count}, expected at least 2; one cannot be displaced")
    draw = random.Random(seed)  # noqa: S311 (a reproducible draw, not a secret)
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = draw.randrange(i)
        order[i], order[j] = order[j], order[i]
    return order
