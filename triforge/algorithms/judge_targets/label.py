"""`label`: what is known to be right about the step; steps that were not audited teach nothing."""

from __future__ import annotations

import hashlib

from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Judged, judge_target
from triforge.algorithms.registry import NoOptions


@judge_target("label")
def label(judged: Judged, algorithm: CoreOptions, options: NoOptions) -> Rows:
    """Return the label of each step that was audited."""
    return [[None if known is None else float(known) for known in row] for row in judged.labels]


def draw(name: str) -> float:
    """Return a number in [0, 1) by lot, the same for the same name: a rollout is audited if it is below the audited share."""
    return int.from_bytes(hashlib.sha256(f"audit {name}".encode()).digest()[:8], "big") / 2.0**64
