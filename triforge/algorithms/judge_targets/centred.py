"""`centred`: R less its mean over the steps of equal index, so that an easy task or a late step teaches nothing."""

from __future__ import annotations

import math

from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Cell, Judged, filled, judge_target
from triforge.algorithms.judge_targets.published import published
from triforge.algorithms.registry import NoOptions


@judge_target("centred")
def centred(judged: Judged, algorithm: CoreOptions, options: NoOptions) -> Rows:
    """Return `R - mean(R)` over the judged steps of equal index."""
    rewards = published.function(judged, algorithm, options)
    found: dict[Cell, float] = {}
    for cells in judged.places("index"):
        here = {(t, i): r for t, i in cells if (r := rewards[t][i]) is not None}
        if here:
            mean = math.fsum(here.values()) / len(here)
            found |= {cell: reward - mean for cell, reward in here.items()}
    return filled(judged, found)
