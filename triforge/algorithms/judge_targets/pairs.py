"""`pairs`: of two steps of one place, the one with the better outcome should have the higher votes (RankNet)."""

from __future__ import annotations

import math
from itertools import combinations

from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Cell, Judged, PlaceOptions, filled, judge_target


@judge_target("pairs", PlaceOptions)
def pairs(judged: Judged, algorithm: CoreOptions, options: PlaceOptions) -> Rows:
    """Return the mean over a step's pairs of `+-1 / (1 + exp(d))`, d being how far the better one's mean vote lies above the other's.

    It is the gradient of the pairs' logistic loss by the mean vote: pairs that are in order count little. Two steps of one
    observation and action are no pair. Source: C. Burges et al., Learning to Rank using Gradient Descent, ICML 2005.
    """
    seen, actions, terms = judged.observations, judged.actions, dict[Cell, list[float]]()
    for cells in judged.places(options.target_place):
        known = [(t, i) for t, i in cells if judged.votes[t][i]]
        for one, other in combinations(known, 2):
            (t, i), (u, j) = one, other
            difference = (judged.outcomes[t] or 0) - (judged.outcomes[u] or 0)
            same = (seen[t][i], actions[t][i]) == (seen[u][j], actions[u][j])
            if difference and not same:
                sign = 1.0 if difference > 0 else -1.0
                doubt = sign / (1.0 + math.exp(sign * (_mean(judged, one) - _mean(judged, other))))
                terms.setdefault(one, []).append(doubt)
                terms.setdefault(other, []).append(-doubt)
    return filled(judged, {cell: math.fsum(own) / len(own) for cell, own in terms.items()})


def _mean(judged: Judged, cell: Cell) -> float:
    votes = judged.votes[cell[0]][cell[1]]
    return sum(votes) / len(votes)
