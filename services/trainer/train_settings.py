"""What a batch says about how it is to be trained on: the orchestrator's side of the bargain, checked by the learner."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from triforge.algorithms.aggregation import Aggregation
from triforge.algorithms.off_policy import Correction, Level, Mode
from triforge.algorithms.policy_losses import Job, Loss, LossRule
from triforge.config import CriticSection, LearnerSection
from triforge.errors import ConfigError
from triforge.types import TrainBatch

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class AuxiliarySettings(BaseModel):
    """What the step does with rows that name an objective.

    Attributes:
        weights: lambda of each objective at this step; one of 0 is measured only.
        loss: of a target token, see `triforge.algorithms.auxiliary.LOSSES`.
        measure_gradients: compare the gradient norms of both sides of the sum in the first update.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: dict[Literal["sp", "id"], NonNegative] = {}
    loss: Literal["ce", "clipped_mae"] = "ce"
    measure_gradients: bool = True


class CriticRule(BaseModel):
    """How advantages are estimated on a critic's values; see `triforge.algorithms.presets.Preset`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    estimator: Literal["gae", "bilevel_gae"]
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    gae_lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    turn_gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    value_clip: Positive | None = None
    whiten: bool = False


class TrainSettings(BaseModel):
    """`TrainBatch.settings`, typed. Unknown fields are refused: an option that is not obeyed must not look obeyed.

    Attributes:
        model_path: the run's initial model folder, also the anchor of `kl_reference = "initial"`.
        learner: optimiser section of the role.
        job: see `triforge.algorithms.presets.Preset`, as for all fields up to `aggregation`;
            `off_policy`, the cap and the band are the ones in force.
        auxiliary: objectives beside the policy gradient.
        critic: how a critic estimates the advantages; None is no critic.
        critic_learner: optimiser section of the critic.
        temperature: at which the rows were sampled; log-probabilities are those of `logits / temperature`.
        seed: of the order of the rows.
        base_version: the version that serves the initial folder.
        folder_version: the number under which the weights of the batch's version were written; None for the initial ones.
        keep: weight versions that stay on the disk.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model_path: str
    learner: LearnerSection = LearnerSection()
    job: Job = "pg"
    dpo_beta: Positive = 0.1
    loss: Loss = "ppo"
    clip_low: Positive = 0.2
    clip_high: Positive = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    log_ratio_clamp: Positive = 10.0
    entropy_bonus: NonNegative = 0.0
    kl_beta: NonNegative = 0.01
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"
    std_ddof: Annotated[int, Field(ge=0, le=1)] = 0
    std_eps: NonNegative = 0.0
    kl_reference: Literal["step_start", "initial"] = "initial"
    kl_clamp: Positive | None = 10.0
    kl_weighted: bool = False
    kl_target: Positive | None = None
    kl_gain: Positive = 0.1
    off_policy: Mode = "none"
    off_policy_level: Level = "token"
    off_policy_cap: Positive = 2.0
    off_policy_band: tuple[Positive, Positive] = (0.5, 2.0)
    off_policy_veto: NonNegative | None = 1e-4
    off_policy_normalize: bool = False
    opsm_delta: NonNegative | None = None
    aggregation: Aggregation = "step_mean"
    auxiliary: AuxiliarySettings = AuxiliarySettings()
    critic: CriticRule | None = None
    critic_learner: CriticSection = CriticSection()
    temperature: Positive = 1.0
    seed: int = 1
    base_version: int = 0
    folder_version: int | None = None
    keep: Annotated[int, Field(ge=1)] = 3

    @model_validator(mode="after")
    def _has_a_critic(self) -> TrainSettings:
        if self.job == "critic" and self.critic is None:
            raise ValueError(
                "job: given 'critic' without critic, expected how it estimates advantages"
            )
        return self

    @property
    def loss_rule(self) -> LossRule:
        """Which policy loss, and its constants."""
        return LossRule(
            loss=self.loss,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            log_ratio_clamp=self.log_ratio_clamp,
        )

    @property
    def correction(self) -> Correction:
        """What is done about samples of other weights."""
        return Correction(
            mode=self.off_policy,
            level=self.off_policy_level,
            cap=self.off_policy_cap,
            band=self.off_policy_band,
            veto=self.off_policy_veto,
            normalize=self.off_policy_normalize,
        )

    def teaches_policy(self, step: int) -> bool:
        """Whether a training step of the run (from 1) changes the policy, and not the critic alone."""
        if self.critic is None:
            return True
        return self.job != "critic" and step > self.critic_learner.alone_steps

    @staticmethod
    def of(batch: TrainBatch) -> TrainSettings:
        """Read a batch's settings.

        Raises:
            ConfigError: a field is missing, unknown or impossible.
        """
        try:
            return TrainSettings.model_validate(batch.settings)
        except ValidationError as error:
            problems = tuple(
                f"batch {batch.batch_id}, settings.{'.'.join(str(p) for p in item['loc'])}: {item['msg']}"
                for item in error.errors()
            )
            raise ConfigError("; ".join(problems), problems=problems) from None
