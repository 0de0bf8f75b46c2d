"""`[trainer.action_critic]`: the ensemble that values candidate actions for `env_adapter.strategy = "critic_best_of_k"`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triforge.algorithms.action_critic import CriticOptions
from triforge.algorithms.registry import Only
from triforge.config.base import Positive, Section


class ActionCriticSection(Section, CriticOptions):
    """Critics Q(state, action) learnt from replay (Cal-QL), the trainer's own step after each step's rollouts."""

    updates: Positive = 64
    """Updates a training step."""
    offline_run: str = Field("", pattern=r"^[\w-]*$", max_length=200)
    """A run of this deployment whose recorded steps are the offline partition; empty has none."""
    offline_updates: Annotated[
        Positive, Only(lambda s: bool(s.offline_run), "an offline_run: nothing is known before")
    ] = 256
    """Updates on that partition alone before the first step, whose rollouts the critic chooses already."""
    capacity: Positive = 10_000
    """Transitions kept of either partition, the last ones."""
