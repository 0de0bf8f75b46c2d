"""`published`: the integrated reward R of the step (arXiv 2602.02488, section 2)."""

from __future__ import annotations

from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.credit import step_reward
from triforge.algorithms.judge_targets import Judged, judge_target
from triforge.algorithms.registry import NoOptions


@judge_target("published")
def published(judged: Judged, algorithm: CoreOptions, options: NoOptions) -> Rows:
    """Return `R = O + reward_lam * mean(S)`."""
    rows = zip(judged.outcomes, judged.votes, strict=True)
    lam = algorithm.reward_lam
    return [
        [None if outcome is None or not s else step_reward(outcome, s, lam=lam) for s in steps]
        for outcome, steps in rows
    ]
