"""The section `[methods.vlm_rl]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from triforge.algorithms.registry import Only
from triforge.config import RunConfig
from triforge.config.base import Conflicts, Share
from triforge.config.methods import MethodOptions

_TARGET = Only(lambda s: bool(s.target), "a target: no state is held against the reward")


class VlmRlOptions(MethodOptions):
    """Screenshots compared with goals in words, `reward.kind = "vlm_rl"`, alone or combined with the state."""

    positive: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that describe a good screenshot; of several texts the mean direction counts."""
    negative: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that describe a bad screenshot."""
    form: Literal["clipped", "weighted"] = "clipped"
    """`clipped`: the released code's `1 - clip(cos- - cos+, 0, theta) / theta`; `weighted`: the paper's
    `alpha * cos+ - (1 - alpha) * cos-`."""
    theta: Annotated[
        float, Only(lambda s: s.form == "clipped", "form = 'clipped': nothing else is clipped")
    ] = Field(0.03, gt=0.0, le=2.0)
    """Margin in favour of the negative goal at which the reward is 0."""
    alpha: Annotated[
        Share, Only(lambda s: s.form == "weighted", "form = 'weighted': nothing else is weighed")
    ] = 0.5
    """Weight of the positive goal; beta, that of the negative one, is the rest."""
    target: str = ""
    """Number of the state (`speed`) whose target the reward scales; empty: the reward itself is the score."""
    target_limit: Annotated[float, _TARGET] = Field(1.0, gt=0.0)
    """Target of that number at a reward of 1."""
    factors: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Numbers of the state that the score is multiplied with, each as `max(1 - |number| / limit, 0)`. The numbers
    are the environment's, `invalid` (1 after an invalid action) and `turn` (from 1)."""
    terminal: float | None = None
    """Score of the last step of an episode that failed, in the place of its screenshot's; none does not replace it."""
    encoder: Literal["service", "colours"] = "service"
    """The model at `TRIFORGE_ENCODER_URL`, or a built-in that only knows names of colours, for trials and tests."""

    @property
    def needs_policy(self) -> str:
        """Return the scores, which are those of screenshots."""
        return "reward.kind = 'vlm_rl'"

    def addresses(self, config: RunConfig) -> tuple[str, ...]:
        """Return the address of the encoder, if it is a service."""
        return ("encoder",) if self.encoder == "service" and _scores(config) else ()

    def conflicts(self, config: RunConfig) -> Conflicts:
        """Refuse scores without goals, and goals that no scores read."""
        yield (
            _scores(config) and not (self.positive and self.negative),
            "methods.vlm_rl.positive and negative: given none of one of them with reward.kind = 'vlm_rl', expected at least one "
            "text of each: what a screenshot should show, and what it must not",
        )
        yield (
            not _scores(config) and bool(self.changed),
            f"methods.vlm_rl: given {', '.join(self.changed)} with reward.kind = {config.reward.kind!r}, allowed only with 'vlm_rl': no "
            "other step scores read goals",
        )

    @model_validator(mode="after")
    def _distinct(self) -> VlmRlOptions:
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


def _scores(config: RunConfig) -> bool:
    return config.reward.kind == "vlm_rl"
