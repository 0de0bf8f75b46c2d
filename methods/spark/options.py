"""The section `[methods.spark]`."""

from __future__ import annotations

from collections.abc import Iterator

from triforge.config import RunConfig
from triforge.config.base import Positive
from triforge.config.methods import MethodOptions


class SparkOptions(MethodOptions):
    """Questions about finished rollouts, which the policy answers and learns from. There is no reward model."""

    questions: Positive = 32
    """Rollouts to judge, and attempts to mend, a step; at most this many of each."""

    @property
    def judge_is_policy(self) -> bool:
        """Return True: the policy answers for the reward model."""
        return True

    @property
    def reads_success(self) -> bool:
        """Return True: a question is about success."""
        return True

    def conflicts(self, config: RunConfig) -> Iterator[tuple[bool, str]]:
        """Refuse a policy whose own verdicts would reward it, and rollouts that no question can be about."""
        algorithm, section, models = config.algorithm.resolved, config.env_adapter, config.models
        yield (
            algorithm.needs_votes or not algorithm.use_outcome,
            f"algorithm.preset: given {algorithm.name!r} with methods.spark, allowed only outcomes alone (preset 'spark', or "
            "use_votes and train_reward_model = false): a policy that votes on itself would learn to please its own verdict, and "
            "there is no other reward model to train",
        )
        yield (
            section.by_agents or section.chosen.siblings,
            f"env_adapter: given played_by = {section.played_by!r} and strategy = {section.strategy!r} with methods.spark, allowed "
            "'workers' and whole rollouts: agents of yours answer no questions, and candidates of a tree are no attempts that "
            "succeeded or failed",
        )
        further = [*list(models.players)[1:], *list(models.judging)[1:]]
        yield (
            bool(further),
            f"models.{''.join(further[:1])}: given with methods.spark, which takes the policy for the only model that plays and "
            "judges",
        )
