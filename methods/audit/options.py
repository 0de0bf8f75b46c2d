"""The section `[methods.audit]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from triforge.config import RunConfig
from triforge.config.base import Positive, Share
from triforge.config.methods import MethodOptions


class AuditOptions(MethodOptions):
    """Training of the judge on labels of audited steps (`reward.audit_share`) and of people (`POST .../labels`); the test of its versions."""

    train_every: Positive = 1
    """Steps from one training of the judge to the next."""
    updates: Positive = 12
    """Optimiser updates of the judge in a step that trains it by labels."""
    keep_steps: int = Field(5, ge=0)
    """Steps before this one whose labels are trained on again."""
    anchors: Share = 0.25
    """Share of the groups whose audited rollouts are not trained on: they measure the judge."""
    most_anchors: int = Field(64, ge=2, le=10_000)
    """Anchors that each version judges: half of them the newest, half from all older ones by lot."""
    by_competence: bool = False
    """Weigh the votes by `2 * right - 1`, at least 0, of the balanced share of right votes on the anchors, of the version that judges."""
    error: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Chance that a version that judges as well as the one before is refused in the whole run; 0 refuses none."""

    def conflicts(self, config: RunConfig) -> Iterator[tuple[bool, str]]:
        """Refuse runs in which no label could train the judge."""
        algorithm = config.algorithm.resolved
        yield (
            algorithm.train_reward_model
            and self.error > 0.0
            and (config.run.checkpoint_every > 1 or config.run.keep_checkpoints < 2),
            f"run: given checkpoint_every = {config.run.checkpoint_every} and keep_checkpoints = {config.run.keep_checkpoints} with "
            "methods.audit, expected 1 and at least 2: a refused version of the judge goes back to the checkpoint before it; or "
            "methods.audit.error = 0, which refuses none",
        )
        yield (
            self.by_competence and not algorithm.train_reward_model,
            "methods.audit.by_competence: given true with train_reward_model = false, allowed only with true: anchors measure versions "
            "of a judge that is trained",
        )
        yield (
            config.reward.audit_share == 0.0 and not algorithm.train_reward_model,
            "reward.audit_share: given 0 with methods.audit and train_reward_model = false, expected a share above 0 of the rollouts: "
            "labels of people teach and measure a judge that is trained",
        )
        yield (
            algorithm.train_reward_model
            and algorithm.judge_target == "label"
            and algorithm.reward_band is not None,
            f"algorithm.overrides.reward_band: given {algorithm.reward_band} with judge_target = 'label', expected 'none': a label says "
            "something also where all rollouts of a task fail",
        )
