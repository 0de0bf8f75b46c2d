"""Whether a task should change, and which way: the band of RLAnything."""

from __future__ import annotations

from triforge.messages import Direction, TaskOutcome


def wanted_direction(outcome: TaskOutcome) -> Direction | None:
    """Which way the task of this outcome should be rewritten, if at all.

    Harder above `alpha_high`, easier below `alpha_low`, both strict (arXiv 2602.02488, section 2). Only measured
    rollouts count, and at least half of the group must have been measured: what the infrastructure lost is not read as
    difficulty, and what little is left is not read as a sign.
    """
    if outcome.purpose != "train" or not outcome.adapt:
        return None
    if outcome.measured == 0 or 2 * outcome.measured < outcome.rollouts:
        return None
    accuracy = outcome.successes / outcome.measured
    if accuracy > outcome.settings.alpha_high:
        return "harder"
    return "easier" if accuracy < outcome.settings.alpha_low else None
