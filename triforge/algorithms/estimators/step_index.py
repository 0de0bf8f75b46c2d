"""`step_index`: compare, among the trajectories of one task, the steps that have the same index (arXiv 2602.02488)."""

from __future__ import annotations

from typing import Literal

from triforge.algorithms.advantages import ScoredRows, compared, frozen
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.registry import Options


class StepIndexOptions(Options):
    """Options of `step_index`."""

    lone_step: Literal["raw", "zero"] = "zero"
    """What a step that only one trajectory reached is worth: its raw reward or nothing."""


@estimator("step_index", StepIndexOptions, splits=True)
def step_index(group: Group, algorithm: CoreOptions, options: StepIndexOptions) -> ScoredRows:
    """Every step against the steps of its index."""
    advantages = [[0.0] * len(row) for row in group.rewards]
    reasons: list[list[str | None]] = [[None] * len(row) for row in group.rewards]
    for i in range(max((len(row) for row in group.rewards), default=0)):
        reached = [t for t, row in enumerate(group.rewards) if i < len(row)]
        at_index = [group.rewards[t][i] for t in reached]
        scored = compared(at_index, algorithm, lone=options.lone_step)
        for t, advantage, why in zip(reached, scored.advantages, scored.reasons, strict=True):
            advantages[t][i], reasons[t][i] = advantage, why
    return ScoredRows(frozen(advantages), frozen(reasons))
