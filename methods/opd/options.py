"""The section `[methods.opd]`, and what goes with it."""

from __future__ import annotations

from triforge.algorithms.losses import LOSSES
from triforge.config import RunConfig
from triforge.config.base import Conflicts
from triforge.config.methods import MethodOptions


class OpdOptions(MethodOptions):
    """No options of its own: the teacher is `models.reward`, its weight `algorithm.overrides.lam`."""

    def conflicts(self, config: RunConfig) -> Conflicts:
        """Refuse one half of the method, and parts that give all tokens of a response one advantage."""
        algorithm, kind = config.algorithm.resolved, config.reward.kind
        yield (
            kind != "opd" or algorithm.estimator != "opd",
            f"reward.kind: given {kind!r} with algorithm estimator = {algorithm.estimator!r}, expected 'opd' for both (preset "
            "'opd'): the estimator reads the scores of the teacher, and no other does",
        )
        for option, one in {
            "loss": LOSSES.find(algorithm.loss).by_response,
            "job": algorithm.job != "pg",
            "use_votes": not algorithm.use_votes,
            "whiten": algorithm.whiten,
        }.items():
            yield (
                one,
                f"algorithm.overrides.{option}: given {getattr(algorithm, option)!r} with reward.kind = 'opd', expected the "
                "preset's: the teacher gives each token an advantage of its own",
            )
