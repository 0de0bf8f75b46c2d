"""`privileged`: the judge imitates its own votes with a reference solution in the prompt (arXiv 2605.30290)."""

from __future__ import annotations

from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Cell, Judged, filled, judge_target
from triforge.algorithms.registry import NoOptions


@judge_target("privileged", needs_reference=True)
def privileged(judged: Judged, algorithm: CoreOptions, options: NoOptions) -> Rows:
    """Return the mean privileged vote of the step; no outcome takes part. A task without a known solution teaches nothing."""
    targets: dict[Cell, float] = {}
    for t, row in enumerate(judged.extra):
        for i, extra in enumerate(row):
            if votes := extra.get("privileged"):
                targets[t, i] = sum(votes) / len(votes)
    return filled(judged, targets)
