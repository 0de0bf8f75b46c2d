"""`step_index`: compare, among the trajectories of one task, the steps that have the same index (arXiv 2602.02488)."""

from __future__ import annotations

from typing import Literal

from triforge.algorithms.advantages import ScoredRows, compared_within
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
    rows = group.rewards
    longest = max(map(len, rows), default=0)
    columns = [[(t, i) for t, row in enumerate(rows) if i < len(row)] for i in range(longest)]
    return compared_within(rows, columns, algorithm, lone=options.lone_step)
