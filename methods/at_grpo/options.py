"""The section `[methods.at_grpo]`."""

from __future__ import annotations

from pydantic import Field

from triforge.config import RunConfig
from triforge.config.base import Conflicts
from triforge.config.methods import MethodOptions


class AtGrpoOptions(MethodOptions):
    """Tree rollouts, `env_adapter.strategy = "at_grpo"`, compared by the estimator `branch`."""

    team_weight: float = Field(1.0, ge=0, le=100)
    """Weight of the reward that a candidate earns for all agents, relative to the reward of its own agent."""

    def conflicts(self, config: RunConfig) -> Conflicts:
        """Refuse a weight that no strategy reads."""
        yield (
            not config.env_adapter.chosen.siblings and self.team_weight != 1.0,
            f"methods.at_grpo.team_weight: given {self.team_weight} with env_adapter.strategy = "
            f"{config.env_adapter.strategy!r}, allowed only with 'at_grpo': no other strategy weighs candidates",
        )
