"""Numbers that change over a run: step sizes, weights of auxiliary objectives, the weight of the KL term.

Source of the cosine weight: EnvRL, arXiv 2606.17680; linear and constant ones are ours.
"""

from __future__ import annotations

import math
from typing import Literal

from triforge.errors import InputError

Schedule = Literal["constant", "linear", "cosine"]

_LARGEST_ERROR = 0.2  # that a step counts


def learning_rate(
    update: int,
    *,
    highest: float,
    schedule: Schedule = "constant",
    warmup: int = 0,
    total: int = 0,
    final_share: float = 0.0,
) -> float:
    """The step size of an update: a linear rise over the first `warmup` updates, then the schedule's fall.

    With t from 0 at the end of the rise to 1 at update `total`, and f the final share:

        constant    highest
        linear      highest * (1 - (1 - f) t)
        cosine      highest * (f + (1 - f) (1 + cos(pi t)) / 2)         (Loshchilov and Hutter, 2017, without restarts)

    Args:
        update: counted from 0 over the whole run.
        highest: at the end of the rise.
        schedule: how it falls.
        warmup: updates of the rise; the first has `highest / warmup`.
        total: updates after which it stays at `final_share * highest`.
        final_share: of `highest`.

    Raises:
        InputError: a falling schedule without an end after the rise.
    """
    if schedule != "constant" and total <= warmup:
        raise InputError(
            f"schedule_updates: given {total} with schedule {schedule!r} and {warmup} updates of warm-up, expected more "
            "updates than those: they say where the fall ends"
        )
    if update < warmup:
        return highest * (update + 1) / warmup
    if schedule == "constant":
        return highest
    t = min(1.0, (update - warmup) / (total - warmup))
    fallen = 1.0 - t if schedule == "linear" else (1.0 + math.cos(math.pi * t)) / 2
    return highest * (final_share + (1.0 - final_share) * fallen)


def scheduled_weight(lambda0: float, step: int, t_max: int, schedule: Schedule = "cosine") -> float:
    """The weight of an auxiliary objective at a training step.

    `cosine` is `lambda0 * (1 + cos(pi * t / t_max)) / 2`, `linear` is `lambda0 * (1 - t / t_max)`; both are 0 from t_max
    on. `constant` is lambda0 throughout.

    Args:
        lambda0: the weight at step 0, at least 0.
        step: t, counted from 0.
        t_max: the step at which the weight has come down to 0, at least 1; not read by `constant`.
        schedule: which.

    Raises:
        InputError: a number is out of its range.
    """
    if lambda0 < 0 or step < 0 or t_max < 1:
        raise InputError(
            f"lambda0, step and t_max: given {lambda0}, {step} and {t_max}, expected at least 0, 0 and 1"
        )
    if schedule == "constant":
        return lambda0
    if step >= t_max:
        return 0.0
    if schedule == "linear":
        return lambda0 * (1.0 - step / t_max)
    return lambda0 * 0.5 * (1.0 + math.cos(math.pi * step / t_max))


def adaptive_beta(beta: float, kl: float, *, target: float, gain: float) -> float:
    """The weight of the KL term after a step that went `kl` nats a token from the anchor.

    `beta * (1 + gain * clip(kl / target - 1, -0.2, 0.2))`: larger where the policy went further than wanted, smaller where
    it stayed nearer. Source: Ziegler et al., arXiv 1909.08593, section 2.2.
    """
    error = min(max(kl / target - 1.0, -_LARGEST_ERROR), _LARGEST_ERROR)
    return beta * (1.0 + gain * error)
