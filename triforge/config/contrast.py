"""`[reward.contrast]`: what a screenshot is compared with, and how that becomes a step's score."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from triforge.algorithms.registry import Only
from triforge.config.base import Section, Share

_TARGET = Only(lambda s: bool(s.target), "a target: no state is held against the reward")


class ContrastSection(Section):
    """Screenshots against goals in words (`reward.kind = "vlm_contrast"`), alone or combined with the state."""

    positive: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """What a screenshot should show; of several texts the mean direction."""
    negative: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """What it must not show."""
    form: Literal["clipped", "weighted"] = "clipped"
    """`clipped`: the released code's `1 - clip(cos- - cos+, 0, theta) / theta`; `weighted`: the paper's
    `alpha * cos+ - (1 - alpha) * cos-`."""
    theta: Annotated[
        float, Only(lambda s: s.form == "clipped", "form = 'clipped': nothing else is clipped")
    ] = Field(0.03, gt=0.0, le=2.0)
    """Margin in favour of the negative goal from which on the reward is 0."""
    alpha: Annotated[
        Share, Only(lambda s: s.form == "weighted", "form = 'weighted': nothing else is weighed")
    ] = 0.5
    """Weight of the positive goal; beta, that of the negative one, is the rest."""
    target: str = ""
    """Number of the state that the reward scales a target of (`speed`); empty: the reward itself is the score."""
    target_limit: Annotated[float, _TARGET] = Field(1.0, gt=0.0)
    """What that number should be where the reward is 1."""
    factors: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Numbers of the state that the score is multiplied with, each as `max(1 - |number| / limit, 0)`. Beside the
    environment's own there are `invalid` (1 after an invalid action) and `turn` (from 1)."""
    terminal: float | None = None
    """Score of the last step of an episode that failed, whatever its screenshot shows; none leaves it as it is."""
    encoder: Literal["service", "colours"] = "service"
    """Who embeds: the model at `TRIFORGE_ENCODER_URL`, or a built-in that only knows names of colours, for trials and tests."""

    @model_validator(mode="after")
    def _apart(self) -> ContrastSection:
        if both := sorted(set(self.positive) & set(self.negative)):
            raise ValueError(
                f"negative: given {both[0]!r} as positive goal, too; expected goals that differ: only their direction counts"
            )
        if self.factors and self.form == "weighted" and not self.target:
            raise ValueError(
                "factors: given with form = 'weighted' and no target, allowed with 'clipped' or a target: weighted rewards may be "
                "below 0, and a factor of 0 would then be worth more than one of 1"
            )
        return self
