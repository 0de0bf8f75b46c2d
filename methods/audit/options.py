"""The section `[methods.audit]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from triforge.config import RunConfig
from triforge.config.base import Positive, Share
from triforge.config.methods import MethodOptions


class AuditOptions(MethodOptions):
    """Training of the judge on labels of audited steps (`reward.audit_share`), and the test that its versions have to pass."""

    train_every: Positive = 1
    """Steps from one training of the judge to the next."""
    updates: Positive = 36
    """Optimiser updates of the judge in a step that trains it."""
    keep_steps: int = Field(5, ge=0)
    """Steps before this one whose labels are trained on again."""
    anchors: Share = 0.25
    """Share of the audited rollouts that are not trained on: they measure the judge."""
    most_anchors: Positive = 64
    """Anchors that each version judges: half of them the newest, half from all steps by lot."""
    error: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Chance that a version that judges as well as the one before is refused in the whole run; 0 refuses none."""

    def conflicts(self, config: RunConfig) -> Iterator[tuple[bool, str]]:
        """Refuse runs in which no label could train the judge."""
        algorithm, reward = config.algorithm.resolved, config.reward
        trained = algorithm.train_reward_model
        yield (
            trained and algorithm.judge_target != "label",
            f"algorithm: given judge_target = {algorithm.judge_target!r} with methods.audit, expected 'label' (preset 'audited'), or "
            "train_reward_model = false, which measures the judge alone",
        )
        yield (
            reward.audit_share == 0.0,
            "reward.audit_share: given 0 with methods.audit, expected a share above 0 of the rollouts",
        )
        yield (
            trained and algorithm.reward_band is not None,
            f"algorithm.overrides.reward_band: given {algorithm.reward_band} with methods.audit, expected 'none': a label says "
            "something also where all rollouts of a task fail",
        )
