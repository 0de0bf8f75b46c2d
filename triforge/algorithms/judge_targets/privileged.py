"""`privileged`: the judge imitates itself as it votes with a reference solution in sight (arXiv 2605.30290)."""

from __future__ import annotations

from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Cell, Judged, filled, judge_target
from triforge.algorithms.registry import NoOptions


@judge_target("privileged", reads_privileged=True)
def privileged(judged: Judged, algorithm: CoreOptions, options: NoOptions) -> Rows:
    """Mean privileged vote of the step; no outcome takes part. A task without a known solution teaches nothing."""
    found: dict[Cell, float] = {}
    for t, row in enumerate(judged.privileged):
        found |= {(t, i): sum(votes) / len(votes) for i, votes in enumerate(row) if votes}
    return filled(judged, found)
