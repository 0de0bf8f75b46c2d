"""Jobs without imitation: `pg` trains by advantages, `critic` trains the critic alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triforge.algorithms.jobs import JOBS, Job
from triforge.algorithms.registry import Options


class CriticOptions(Options):
    """Options of `critic`: none of its own."""

    def conflicts(self, algorithm: Any) -> Iterator[tuple[bool, str]]:
        """Refuse an estimator without a critic, and terms of a loss that the policy does not have."""
        yield (
            not algorithm.needs_critic,
            f"job: given {algorithm.job!r} with estimator = '{algorithm.estimator}', expected an estimator with a critic "
            "('gae' or 'bilevel_gae')",
        )
        kl = algorithm.kl_beta > 0.0 and not algorithm.charged
        yield (
            algorithm.entropy_bonus > 0.0 or kl,
            f"job: given {algorithm.job!r} with entropy_bonus = {algorithm.entropy_bonus} and kl_beta = "
            f"{algorithm.kl_beta}, expected 0 for both (or kl_placement = 'reward'): the policy is not trained, so it has "
            "no loss",
        )


JOBS.add("pg", Job(name="pg", corrects=True))
JOBS.add("critic", Job(name="critic", options=CriticOptions, trains_policy=False))
