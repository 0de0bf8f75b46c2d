"""The section `[methods.rloop]`."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from triforge.config import RunConfig
from triforge.config.base import Positive, Share
from triforge.config.methods import MethodOptions


class RLoopOptions(MethodOptions):
    """Loops of `explore_steps` steps of RL and one step that fine-tunes the loop's first weights on the loop's solutions."""

    explore_steps: Positive = 20
    """Steps of RL in a loop."""
    hardest: Share = 0.5
    """Tasks solved in more than this share of a loop's rollouts are not imitated."""
    distinct: Positive = 4
    """Different solutions of a task that are imitated, from different steps first."""
    least: int = Field(32, ge=1)
    """Solutions below which the run ends."""
    falls: Positive = 2
    """Loops in a row with less held-out success than the one before, after which the run ends."""
    epochs: Positive = 2
    """Passes over the solutions."""
    learning_rate: float = Field(1e-05, gt=0)
    """Step size of fine-tuning."""
    pass_k: Positive = 32
    """Tries of which one has to succeed in the measure `archive/pass`."""

    @property
    def needs_policy(self) -> str:
        """Return the method, which fine-tunes the policy."""
        return "methods.rloop"

    def conflicts(self, config: RunConfig) -> Iterator[tuple[bool, str]]:
        """Refuse phases that would overlap, and rollouts or models that cannot be fine-tuned."""
        bound, algorithm = config.run.staleness_bound, config.algorithm.resolved
        yield (
            bound > 0,
            f"run.staleness_bound: given {bound} with methods.rloop, allowed 0: rollouts of one phase would be trained on in "
            "the next",
        )
        yield (
            config.env_adapter.chosen.siblings,
            f"env_adapter.strategy: given {config.env_adapter.strategy!r} with methods.rloop, allowed 'group': candidates for a turn "
            "are no rollouts that could be imitated whole",
        )
        yield (
            not algorithm.job_part.corrects or algorithm.needs_critic,
            f"algorithm: given job = {algorithm.job!r} and estimator = {algorithm.estimator!r} with methods.rloop, allowed 'pg' "
            "and an estimator without a critic: exploring is RL, and a critic of weights that are given up does not fit those "
            "that follow",
        )
        further = list(config.models.players)[1:]
        yield (
            bool(further),
            f"models.{''.join(further[:1])}: given with methods.rloop, which takes the policy for the only model that plays",
        )
