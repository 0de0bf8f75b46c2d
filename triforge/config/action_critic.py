"""`[trainer.action_critic]`: the ensemble that values candidate actions for `env_adapter.strategy = "critic_best_of_k"`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triforge.algorithms.registry import Only
from triforge.config.base import Positive, Section, Share


class ActionCriticSection(Section):
    """Critics Q(state, action) learnt from replay (Cal-QL), the trainer's own step after each step's rollouts."""

    members: int = Field(10, ge=1, le=100)
    """Critics of the ensemble; candidates are compared by their mean."""
    subset: int = Field(2, ge=1, le=100)
    """Members drawn for a target."""
    hidden: int = Field(32, ge=1, le=4096)
    """Units of a member's hidden layer."""
    learning_rate: float = Field(3e-4, gt=0)
    """Adam's step size."""
    gamma: float = Field(0.99, ge=0.0, le=1.0)
    """Discount of a step."""
    alpha: float = Field(0.005, ge=0.0)
    """Weight of calibrated conservatism; 0 is Q-learning alone."""
    tau: float = Field(0.005, gt=0.0, le=1.0)
    """How fast the copies follow from which targets are read."""
    batch: Positive = 256
    """Transitions of an update."""
    updates: Positive = 64
    """Updates a training step."""
    online_share: Share = 0.5
    """Of a batch, what the run played itself; the rest is of `offline_run`."""
    offline_run: str = Field("", pattern=r"^[\w-]*$", max_length=200)
    """A run of this deployment whose recorded steps are the offline partition; empty has none."""
    offline_updates: Annotated[
        Positive, Only(lambda s: bool(s.offline_run), "an offline_run: nothing is known before")
    ] = 256
    """Updates on that partition alone before the first step, whose rollouts the critic chooses already."""
    capacity: Positive = 10_000
    """Transitions kept of either partition, the last ones."""
