"""A batch as the learner reads it: its sections, and the weight of the KL term that holds in this step."""

from __future__ import annotations

from dataclasses import dataclass

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.off_policy import Correction
from triforge.config import AuxiliarySection, CriticSection, LearnerSection
from triforge.errors import ConfigError
from triforge.types import TrainBatch


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What the passes of one step read of its batch."""

    algorithm: Algorithm
    correction: Correction
    learner: LearnerSection
    critic_section: CriticSection
    auxiliary: AuxiliarySection
    auxiliary_weights: dict[str, float]
    temperature: float
    seed: int
    model_path: str
    base_version: int
    folder_version: int | None
    keep: int

    def teaches_policy(self, step: int) -> bool:
        """Whether a training step of the run (from 1) changes the policy, and not the critic alone."""
        if not self.algorithm.needs_critic:
            return True
        return self.algorithm.job != "critic" and step > self.critic_section.alone_steps

    @staticmethod
    def of(batch: TrainBatch) -> TrainSettings:
        """Read a batch.

        Raises:
            ConfigError: a critic is to be trained and nothing says how it estimates advantages.
        """
        algorithm = batch.algorithm
        if algorithm.job == "critic" and not algorithm.needs_critic:
            raise ConfigError(
                f"batch {batch.batch_id}: job: given 'critic' with estimator = {algorithm.estimator!r}, expected one with a "
                "critic"
            )
        return TrainSettings(
            algorithm=algorithm,
            correction=algorithm.correction(batch.staleness_bound),
            learner=batch.learner,
            critic_section=batch.critic,
            auxiliary=batch.auxiliary,
            auxiliary_weights={str(name): w for name, w in batch.auxiliary_weights.items()},
            temperature=batch.temperature,
            seed=batch.seed,
            model_path=batch.model_path,
            base_version=batch.base_version,
            folder_version=batch.folder_version,
            keep=batch.keep,
        )
