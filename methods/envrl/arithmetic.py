"""Arithmetic of the auxiliary objectives: the draw of transitions.

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
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


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
