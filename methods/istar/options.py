"""The section `[methods.istar]`."""

from __future__ import annotations

from pydantic import Field

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.jobs.imitation import PairOptions
from triforge.config import RunConfig
from triforge.config.base import Conflicts
from triforge.config.methods import MethodOptions


class IStarOptions(MethodOptions):
    """Implicit rewards, `reward.kind = "istar"`, read by the estimator `fused`."""

    beta: float = Field(0.05, gt=0, le=100)
    """Weight of a nat between the reward model and the policy that sampled, in the reward model's loss."""

    def of_judge(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm of a judge that learns from pairs of trajectories, next to the policy that sampled them."""
        pairs = algorithm.of_job("dpo_pair").changed(kl_reference="sampled")
        return pairs.changed(job_options=PairOptions(dpo_beta=self.beta))

    def conflicts(self, config: RunConfig) -> Conflicts:
        """Refuse estimators that cannot read the rewards, and a reward model that does not learn."""
        algorithm, scores = config.algorithm.resolved, config.reward.kind == "istar"
        yield (
            scores and (algorithm.estimator != "fused" or not algorithm.train_reward_model),
            f"reward.kind: given 'istar' with algorithm estimator = {algorithm.estimator!r} and train_reward_model = "
            f"{algorithm.train_reward_model}, allowed only with 'fused' (preset 'istar') and true: implicit rewards have no scale "
            "of their own, and an untrained reward model has no rewards",
        )
        yield (
            not scores and self.beta != 0.05,
            f"methods.istar.beta: given {self.beta} with reward.kind = {config.reward.kind!r}, allowed only with 'istar': no pairs "
            "are compared otherwise",
        )
