"""The advantages of on-policy distillation: of steps, as an estimator, and of their tokens, in the rows that the learner reads.

Source: https://thinkingmachines.ai/blog/on-policy-distillation and its released code (tinker-cookbook,
`distillation/train_on_policy.py`): the advantage of a token is minus its reverse KL, with discount 0 and without a baseline, added to
the advantage by outcomes if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import cast

from triforge.algorithms.advantages import UNMEASURED, ScoredRows, compared, frozen
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.registry import NoOptions
from triforge.types import JudgedGroup, TrainRow

Scored = tuple[int, list[float]]
"""The place in its row where a response begins, and d of each of its tokens."""


@estimator("opd")
def opd(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Return `A = A_O + lam * d` of each step, d the mean over its tokens; without `use_outcome` A_O is 0.

    A step of A = 0 is trained on, too: its tokens differ.
    """
    outcomes = [
        next((o for o in row if o is not None), None) if algorithm.use_outcome else None
        for row in group.outcomes
    ]
    episodes = compared(outcomes, algorithm).advantages
    return ScoredRows(
        frozen(
            (0.0 if d is None else episode + algorithm.lam * d for d in row)
            for episode, row in zip(episodes, group.votes, strict=True)
        ),
        frozen((UNMEASURED if d is None else None for d in row) for row in group.votes),
    )


def token_scores(groups: Iterable[JudgedGroup], name: str) -> dict[str, list[Scored]]:
    """Return the scored responses by the key of their row; `name` is that of the scorer."""
    found: dict[str, list[Scored]] = {}
    for group in groups:
        for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
            steps = {step.index: step for step in trajectory.steps}
            for judged in votes.steps if votes else ():
                step, scores = steps[judged.step], cast("list[float]", judged.extra[name])
                found.setdefault(f"{trajectory.id}/{step.segment}", []).append((step.start, scores))
    return found


def with_token_scores(row: TrainRow, scored: Sequence[Scored], lam: float) -> TrainRow:
    """Return a row in which each token of a trained response has `A + lam * (d_t - d)` in the place of the step's A."""
    advantages = list(row.advantages)
    for start, scores in scored:
        if row.weights[start]:
            mean = fmean(scores)
            for place, score in enumerate(scores, start):
                advantages[place] += lam * (score - mean)
    return row.model_copy(update={"advantages": tuple(advantages)})
