"""Numbers that change over a run: step sizes, weights of auxiliary objectives.

Sources: Loshchilov and Hutter, 2017, without restarts, for the cosine; EnvRL, arXiv 2606.17680, for the cosine weight;
the rest is ours.
"""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def vote_share(step: int, times: tuple[int, int, int, int] | None) -> float:
    """Return the share of `lam` that votes weigh in a training step: 0 to 1 between the first two times, 1 to 0 between the last two."""
    if times is None:
        return 1.0
    begins, full, falls, ends = times
    if step <= begins or step >= ends:
        return 0.0
    if step < full:
        return (step - begins) / (full - begins)
    return 1.0 if step <= falls else (ends - step) / (ends - falls)


def _fallen(schedule: Schedule, t: float) -> float:
    """Return the factor of a schedule at t in [0, 1]: 1, `1 - t` or `(1 + cos(pi t)) / 2`."""
    if schedule == "constant":
        return 1.0
    return 1.0 - t if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * t))


def learning_rate(
    update: int,
    *,
    highest: float,
    schedule: Schedule = "constant",
    warmup: int = 0,
    total: int = 0,
    final_share: float = 0.0,
) -> float:
    """Return the step size of an update, counted from 0 over the whole run.

    A linear rise to `highest` over the first `warmup` updates, of which the first has `highest / warmup`; then the
    schedule's fall to `final_share * highest` after `total` updates, which are more than those.
    """
    if update < warmup:
        return highest * (update + 1) / warmup
    left = _fallen(schedule, min(1.0, (update - warmup) / max(1, total - warmup)))
    return highest * (left + final_share * (1.0 - left))


def scheduled_weight(lambda0: float, step: int, t_max: int, schedule: Schedule = "cosine") -> float:
    """Return the weight of an auxiliary objective at a step, counted from 0: from lambda0 to 0 at `t_max`."""
    return lambda0 * _fallen(schedule, min(1.0, step / t_max))
