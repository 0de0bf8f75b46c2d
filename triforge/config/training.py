"""`[trainer]`: the optimisers of a run's learners."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from triforge.algorithms.jobs import JOBS
from triforge.algorithms.registry import Only
from triforge.algorithms.schedules import Schedule
from triforge.config.base import Cards, Conflicts, Positive, Role, Section
from triforge.errors import ConfigError

_ADAPTER = Only(lambda s: s.lora_rank > 0, "lora_rank above 0: no adapter is trained")
_FALLS = Only(
    lambda s: s.schedule != "constant",
    "schedule = 'linear' or 'cosine': the step size does not fall",
)


def _job_of_player(name: str) -> str:
    try:
        if name and not JOBS.find(name).trains_policy:
            raise ValueError("expected a job that trains the model itself")
    except ConfigError as error:
        raise ValueError(error.detail) from None
    return name


class LearnerSection(Section):
    """One learner's optimiser. The defaults are the published ones."""

    learning_rate: float = Field(1e-06, gt=0)
    """AdamW's highest step size."""
    schedule: Schedule = "constant"
    """How the step size falls: `constant`, `linear`, `cosine`."""
    warmup_updates: int = Field(0, ge=0)
    """Updates of the run in which the step size rises from 0."""
    schedule_updates: Annotated[int, _FALLS] = Field(0, ge=0)
    """Update of the run at which the fall ends."""
    final_share: Annotated[float, _FALLS] = Field(0.0, ge=0, le=1)
    """Of `learning_rate`, where the fall ends."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    updates_per_step: Positive = 4
    """Optimiser updates a training step."""
    epochs: Positive = 1
    """Passes over the step's rows."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest gradient norm."""
    token_budget: Positive = 8192
    """Tokens a forward pass may hold; shared beginnings count once."""
    updates_by: Literal["rows", "tasks"] = "rows"
    """What a step's updates divide; rows of one task share their prompt's computation."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of matrix products; weights are float32. `auto` is bfloat16 on a GPU, float32 elsewhere."""
    publish_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights of versions. With `bfloat16` the checkpoint holds them as they are."""
    activation_checkpointing: bool = False
    """Compute blocks of layers again on the way back, to save memory."""
    max_tokens: Positive = 32_768
    """Longer rows are not trained on."""
    max_rows: int = Field(0, ge=0)
    """Rows drawn a step; 0 trains on all."""
    max_bad_updates: Positive = 3
    """Non-finite updates skipped in a row before the run stops."""
    lora_rank: int = Field(0, ge=0, le=1024)
    """Rank of the low-rank adapter that is trained; 0 trains all weights."""
    lora_alpha: Annotated[Positive, _ADAPTER] = 32
    """The adapter counts `lora_alpha / lora_rank` times."""
    lora_targets: Annotated[tuple[str, ...], _ADAPTER] = ()
    """Layers that get an adapter, by name (`q_proj`); none is all linear layers of the blocks."""

    @model_validator(mode="after")
    def _whole_models_are_rounded(self) -> LearnerSection:
        if self.publish_dtype != "float32" and self.lora_rank:
            raise ValueError(
                f"publish_dtype: given {self.publish_dtype!r} with lora_rank {self.lora_rank}, expected 'float32': adapters are "
                "read as that"
            )
        return self

    @model_validator(mode="after")
    def _falls_to_an_end(self) -> LearnerSection:
        if self.schedule != "constant" and self.schedule_updates <= self.warmup_updates:
            raise ValueError(
                f"schedule_updates: given {self.schedule_updates} with schedule {self.schedule!r} and warmup_updates "
                f"{self.warmup_updates}, expected more than those: they say where the fall ends"
            )
        return self


class PlacedLearnerSection(LearnerSection):
    """The learner of a model, and where it runs."""

    gpus: Cards = ()
    """Numbers of its cards, one a rank; none leaves them to the plan (`triforge plan`)."""
    ranks: int = Field(0, ge=0)
    """Processes that train together; 0 leaves it to the plan, which takes one without a card. `triforge train` and `up` start them."""


class FurtherLearnerSection(PlacedLearnerSection):
    """The learner of a further model: the fields of `[trainer.policy]`, and what the model is trained for."""

    job: Annotated[str, AfterValidator(_job_of_player)] = ""
    """Its objective, as `algorithm.job` (docs/methods.md); empty is that of the algorithm."""


class CriticSection(Section):
    """The critic's optimiser; what is not here it shares with `trainer.policy`. Read with `gae` and `bilevel_gae` only."""

    learning_rate: float = Field(1e-05, gt=0)
    """AdamW's step size of the critic, constant after `warmup_updates`."""
    warmup_updates: int = Field(0, ge=0)
    """Updates of the run in which the step size rises from 0."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest gradient norm."""
    alone_steps: int = Field(0, ge=0)
    """First steps of the run that train the critic alone and leave the policy as it is."""


class TrainerSection(Section):
    """The learners, one a trained model; that of the policy may have a critic. A further model has the policy's, or where it judges the reward model's, unless it has a section."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, FurtherLearnerSection]
    policy: PlacedLearnerSection = PlacedLearnerSection()
    reward: PlacedLearnerSection = PlacedLearnerSection()
    critic: CriticSection = CriticSection()

    def job(self, role: Role) -> str:
        """Return the objective that a further model has of its own; empty if it has none."""
        own = self.__pydantic_extra__.get(role)
        return own.job if own else ""

    def conflicts(self, config: Any) -> Conflicts:
        """Refuse options of trainings that do not take place, and learners of no model."""
        algorithm, models = config.algorithm.resolved, config.models
        changed = [n for n, value in CriticSection() if getattr(self.critic, n) != value]
        yield (
            bool(changed) and not algorithm.needs_critic,
            f"trainer.critic: given {', '.join(changed)} with algorithm preset {algorithm.name!r}, allowed only with "
            "algorithm.overrides.estimator = 'gae' or 'bilevel_gae': no other estimator has a critic",
        )
        trains = algorithm.job_part.trains_policy
        yield (
            not trains and self.critic.alone_steps > 0,
            f"trainer.critic.alone_steps: given {self.critic.alone_steps} with algorithm.overrides.job = {algorithm.job!r}, "
            "allowed 0: all steps train the critic alone",
        )
        for name in self.__pydantic_extra__:
            job = self.job(name)
            yield (
                name not in models.trainable,
                f"trainer.{name}: unknown field; allowed are {', '.join(type(self).model_fields)}, and names of models that play "
                "or judge agents (models.NAME.agents, models.NAME.judges)",
            )
            yield (
                bool(job) and name in models.judging,
                f"trainer.{name}.job: given {job!r}, allowed none: a model that judges is trained on its votes",
            )
        for name in list(models.players)[1:]:
            imitates, strategy = config.algorithm_of(name).imitates, config.env_adapter.chosen
            yield (
                imitates if strategy.siblings else not (imitates or strategy.draws_policy),
                f"trainer.{name}.job: given {self.job(name)!r} with env_adapter.strategy = {config.env_adapter.strategy!r}, allowed "
                "no imitation of candidates, which are no whole rollouts, and only imitation of selected responses, which are "
                "no draws of the model",
            )
