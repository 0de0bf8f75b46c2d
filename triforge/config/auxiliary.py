"""The section `trainer.aux`: what the policy learns beside the policy gradient."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from triforge.algorithms.schedules import Schedule, scheduled_weight
from triforge.config.base import Positive, Section


class AuxiliaryTermSection(Section):
    """One auxiliary objective."""

    lambda0: Annotated[float, Field(ge=0.0, le=10.0)] = Field(
        default=0.0, description="Its weight at the first step, the schedule lowers it; 0 is off."
    )


class AuxiliarySection(Section):
    """State prediction and inverse dynamics on the transitions that the run itself played (policy only)."""

    sp: AuxiliaryTermSection = AuxiliaryTermSection()
    id: AuxiliaryTermSection = AuxiliaryTermSection()
    schedule: Schedule = Field(
        default="cosine", description="How the weights fall: to 0 at `t_max`, or not at all."
    )
    t_max: int = Field(
        default=0, ge=0, description="Steps until the weights are 0; 0 is `run.steps`."
    )
    layout: Literal["separate", "in_sequence"] = Field(
        default="separate",
        description="State prediction as chat items of their own, or on the observations inside the played sequences.",
    )
    prompt: Literal["plain", "terse"] = Field(
        default="plain",
        description="Wording of separate items: sentences, or three marks for tiny closed vocabularies.",
    )
    history: int = Field(
        default=2,
        ge=0,
        le=64,
        description="Earlier observations and actions shown for state prediction.",
    )
    max_samples_per_update: int = Field(
        default=0,
        ge=0,
        description="Transitions drawn a step, evenly over tasks; 0 is as many as responses that are trained on.",
    )
    max_target_tokens: Positive = Field(default=256, description="Longer targets are cut off here.")
    noop_cap: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.25, description="Largest share of transitions in which nothing happened."
    )
    noop_texts: tuple[str, ...] = Field(
        default=("Nothing happens",),
        description="An observation that begins so says that nothing happened.",
    )
    warning_texts: tuple[str, ...] = Field(
        default=(),
        description="An observation that begins so is the harness speaking, and is not learned from.",
    )
    body_ends_at: tuple[str, ...] = Field(
        default=("\n\nCommands:",),
        description="Where the list of admissible commands begins in an observation; it is never shown or predicted.",
    )
    loss: Literal["ce", "clipped_mae"] = Field(
        default="ce", description="Cross-entropy, or the bounded `min(1 - p, 0.99)`."
    )
    placebo: Literal["none", "shuffle"] = Field(
        default="none", description="`shuffle` gives every item another one's target: the control."
    )
    measure: bool = Field(
        default=False,
        description="Measure both objectives also where their weight is 0; trains nothing.",
    )
    measure_gradients: bool = Field(
        default=True,
        description="Compare gradient norms once a step; holds one more gradient meanwhile.",
    )

    @property
    def wanted(self) -> bool:
        """Whether transitions are looked at at all."""
        return self.wants("sp") or self.wants("id")

    def wants(self, objective: Literal["sp", "id"]) -> bool:
        """Whether rows of an objective are made."""
        term = self.sp if objective == "sp" else self.id
        return self.measure or term.lambda0 > 0

    def weights(self, step: int, steps: int) -> dict[Literal["sp", "id"], float]:
        """The weight of each objective in training step `step` (from 1) of a run of `steps`."""
        t_max = self.t_max or steps
        t = max(0, step - 1)
        return {
            "sp": scheduled_weight(self.sp.lambda0, t, t_max, self.schedule),
            "id": scheduled_weight(self.id.lambda0, t, t_max, self.schedule),
        }

    @model_validator(mode="after")
    def _possible(self) -> AuxiliarySection:
        if self.layout == "in_sequence" and self.placebo == "shuffle" and self.wants("sp"):
            raise ValueError(
                "placebo: given 'shuffle' with layout = 'in_sequence', allowed only with 'separate': what stands in "
                "a sequence cannot be exchanged without changing what the policy read"
            )
        if self.schedule == "constant" and self.t_max > 0:
            raise ValueError(
                f"t_max: given {self.t_max} with schedule = 'constant', allowed 0: a constant weight does not fall"
            )
        if not all(self.noop_texts) or not all(self.warning_texts) or not all(self.body_ends_at):
            raise ValueError(
                "noop_texts, warning_texts and body_ends_at: given an empty text, expected texts of at least one "
                "character: every observation begins with an empty one"
            )
        return self
