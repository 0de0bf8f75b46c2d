"""`fused`: outcomes against each other, and votes standardised over all steps of the task (iStar, arXiv 2509.19199)."""

from __future__ import annotations

from collections.abc import Iterator

from triforge.algorithms.advantages import ScoredRows, added, compared, over_steps, standardise
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.registry import Options


class FusedOptions(Options):
    """No options of its own: the weight of the votes is `lam`."""

    def conflicts(self, algorithm: CoreOptions) -> Iterator[tuple[bool, str]]:
        """It reads outcomes and votes, and nothing else."""
        yield (
            not (algorithm.use_outcome and algorithm.use_votes),
            "estimator: given 'fused' with use_outcome or use_votes = false, allowed only with both: it adds the one to the "
            "other",
        )
        yield (
            algorithm.penalises,
            "estimator: given 'fused' with a penalty, allowed only without: outcomes and votes are compared apart, and no "
            "part would hold it",
        )


@estimator("fused", FusedOptions)
def fused(group: Group, algorithm: CoreOptions, options: FusedOptions) -> ScoredRows:
    """`A = A_E + lam * A_S`; A_S is always divided by the deviation."""
    outcomes = [next((o for o in row if o is not None), None) for row in group.outcomes]
    flat = standardise(
        [value for row in group.votes for value in row],
        std_floor=algorithm.std_floor,
        ddof=algorithm.std_ddof,
        eps=algorithm.std_eps,
    )
    cells = iter(zip(flat.advantages, flat.reasons, strict=True))
    steps = [[next(cells) for _ in row] for row in group.votes]
    within = ScoredRows(
        tuple(tuple(a for a, _ in row) for row in steps),
        tuple(tuple(why for _, why in row) for row in steps),
    )
    episodes = over_steps(group.votes, compared(outcomes, algorithm))
    return added(group.votes, episodes, within, algorithm.lam)
