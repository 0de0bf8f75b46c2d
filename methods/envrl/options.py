"""The section `[methods.envrl]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from triforge.algorithms.registry import Only
from triforge.algorithms.schedules import Schedule, scheduled_weight
from triforge.config import RunConfig
from triforge.config.base import Positive, Section, Share
from triforge.config.methods import MethodOptions

Objective = Literal["sp", "id"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("sp", "id")
_ADDS: Final = Only(lambda s: s.adds, "a weight above 0: nothing is added to the policy's gradient")
_WANTED: Final = Only(
    lambda s: s.wanted,
    "sp.lambda0 or id.lambda0 above 0 or measure = true: no transition becomes a row",
)


class TermSection(Section):
    """One auxiliary objective."""

    lambda0: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Its weight at the first step, the schedule lowers it; 0 is off."""


class EnvRLOptions(MethodOptions):
    """State prediction and inverse dynamics on the transitions that the run itself played (policy only)."""

    sp: TermSection = TermSection()
    id: TermSection = TermSection()
    schedule: Annotated[Schedule, _ADDS] = "cosine"
    """How the weights fall: to 0 at `t_max`, or not at all."""
    t_max: Annotated[int, _ADDS] = Field(0, ge=0)
    """Steps until the weights are 0; 0 is `run.steps`."""
    prompt: Annotated[Literal["plain", "terse"], _WANTED] = "plain"
    """Wording of items: sentences, or three marks for tiny closed vocabularies."""
    history: Annotated[int, _WANTED] = Field(2, ge=0, le=64)
    """Earlier observations and actions shown for state prediction."""
    max_samples_per_update: Annotated[int, _WANTED] = Field(0, ge=0)
    """Transitions drawn a step, evenly over tasks; 0 is one a response that is trained on."""
    max_target_tokens: Annotated[Positive, _WANTED] = 256
    """Longer targets are cut off here."""
    noop_cap: Annotated[Share, _WANTED] = 0.25
    """Largest share of transitions in which nothing happened."""
    noop_texts: Annotated[tuple[str, ...], _WANTED] = ("Nothing happens",)
    """An observation that begins so says that nothing happened."""
    warning_texts: Annotated[tuple[str, ...], _WANTED] = ()
    """An observation that begins so is the harness speaking, and is not learned from."""
    body_ends_at: Annotated[tuple[str, ...], _WANTED] = ("\n\nCommands:",)
    """Where the list of commands begins in an observation; it is never shown or predicted."""
    measure: bool = False
    """Measure both objectives also where their weight is 0; trains nothing."""

    @property
    def adds(self) -> bool:
        """Whether an objective adds to the policy's gradient."""
        return self.sp.lambda0 > 0 or self.id.lambda0 > 0

    @property
    def wanted(self) -> bool:
        """Whether transitions become rows."""
        return self.wants("sp") or self.wants("id")

    @property
    def needs_policy(self) -> str:
        """Return the method if transitions become rows of the policy."""
        return "methods.envrl" if self.wanted else ""

    def wants(self, objective: Objective) -> bool:
        """Return whether rows of an objective are made."""
        return self.measure or (self.sp if objective == "sp" else self.id).lambda0 > 0

    def weights(self, step: int, steps: int) -> dict[Objective, float]:
        """Return the weight of each objective in training step `step` (from 1) of a run of `steps`."""
        when = (max(0, step - 1), self.t_max or steps, self.schedule)
        return {
            "sp": scheduled_weight(self.sp.lambda0, *when),
            "id": scheduled_weight(self.id.lambda0, *when),
        }

    @model_validator(mode="after")
    def _possible(self) -> EnvRLOptions:
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

    def conflicts(self, config: RunConfig) -> Iterator[tuple[bool, str]]:
        """Refuse trainings whose transitions do not follow one another, and models that are not trained."""
        further = list(config.models.players)[1:]
        yield (
            self.wanted and config.env_adapter.chosen.siblings,
            f"methods.envrl: given weights with env_adapter.strategy = {config.env_adapter.strategy!r}, allowed only 0 and measure = false: a candidate of a "
            "tree does not follow the one before it",
        )
        yield (
            self.wanted and not config.algorithm.resolved.job_part.trains_policy,
            "methods.envrl: given weights with algorithm.overrides.job = 'critic', allowed only 0 and measure = false: the policy "
            "is not trained",
        )
        yield (
            self.wanted and bool(further),
            f"models.{''.join(further[:1])}: given with methods.envrl, which takes the policy for the only model that plays",
        )
