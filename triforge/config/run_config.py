"""The document of a run, whole, and the combinations of its sections that are refused."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pydantic import model_validator

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.off_policy import Correction
from triforge.config.base import Role, Section
from triforge.config.methods import MethodOptions, MethodsSection, options_of
from triforge.config.models import ModelsSection
from triforge.config.parts import CONTROLLERS, SCORERS, STRATEGIES
from triforge.config.sections import (
    AdaptationSection,
    AlgorithmSection,
    EnvAdapterSection,
    MachineSection,
    ReportSection,
    RewardSection,
    RunSection,
)
from triforge.config.training import PlacedLearnerSection, TrainerSection
from triforge.errors import ConfigError
from triforge.methods import Method, find, known, preset_owner


class RunConfig(Section):
    """The whole document."""

    run: RunSection = RunSection()
    models: ModelsSection = ModelsSection()
    env_adapter: EnvAdapterSection = EnvAdapterSection()
    adaptation: AdaptationSection = AdaptationSection()
    reward: RewardSection = RewardSection()
    trainer: TrainerSection = TrainerSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    report: ReportSection = ReportSection()
    machine: MachineSection = MachineSection()
    methods: MethodsSection = MethodsSection()

    @cached_property
    def methods_used(self) -> dict[Method, MethodOptions]:
        """Each method that the run uses, in the order of their names, with its options.

        A method is used if the document has its section, names one of its presets or its parts, or if it is a default.
        """
        used = {find(name): options for name, options in self.methods.named.items()}
        owner = preset_owner(self.algorithm.preset)
        for method in map(find, known()):
            if method.default or method is owner:
                used.setdefault(method, options_of(method)())
        parts = (
            CONTROLLERS.method(self.adaptation.controller),
            SCORERS.method(self.reward.kind),
            STRATEGIES.method(self.env_adapter.strategy),
        )
        for method in filter(None, parts):
            used.setdefault(method, options_of(method)())
        return dict(sorted(used.items(), key=lambda item: item[0].name))

    @property
    def extra(self) -> dict[str, Any]:
        """The options of the methods whose parts work in rollout and judge workers, for `GroupTask.extra`."""
        parts = (SCORERS.method(self.reward.kind), STRATEGIES.method(self.env_adapter.strategy))
        return {
            method.name: self.methods_used[method].model_dump(mode="json")
            for method in parts
            if method is not None
        }

    @property
    def judge_is_policy(self) -> bool:
        """Whether the policy answers for the reward model."""
        return any(options.judge_is_policy for options in self.methods_used.values())

    @property
    def trained(self) -> tuple[Role, ...]:
        """The models that the run trains: those that play, unless a trainer has them, and those that judge if votes are asked for."""
        judging, elsewhere = self.models.judging, self.env_adapter.by_trainer
        return tuple(
            r for r in self.models.trainable if (self.votes if r in judging else not elsewhere)
        )

    @property
    def learning(self) -> tuple[Role, ...]:
        """Those of `trained` that have a learner: the model of a frozen scorer is served alone."""
        frozen = self.models.judging if self.reward.chosen.frozen else ()
        return tuple(role for role in self.trained if role not in frozen)

    @property
    def votes(self) -> int:
        """Votes a step, or tests a group, that the run asks for; 0 where its algorithm reads none: no reward model takes part."""
        algorithm = self.algorithm.resolved
        # judgements with a credit of their own do not enter the policy's reward
        own = self.reward.chosen.credit
        needed = algorithm.train_reward_model if own else algorithm.needs_votes
        return self.reward.votes if needed else 0

    def algorithm_of(self, role: Role) -> Algorithm:
        """Return the algorithm as the learner of a model reads it."""
        algorithm, job = self.algorithm.resolved, self.trainer.job(role)
        if role not in self.models.judging:
            return algorithm.of_job(job) if job else algorithm
        scorer = SCORERS.method(self.reward.kind)
        return (
            self.methods_used[scorer].of_judge(algorithm) if scorer else algorithm.of_reward_model()
        )

    def learner(self, role: Role) -> PlacedLearnerSection:
        """Return the section of a trained model's learner."""
        plain = self.trainer.reward if role in self.models.judging else self.trainer.policy
        return (self.trainer.__pydantic_extra__ or {}).get(role, plain)

    @property
    def vote_bound(self) -> int:
        """Versions a vote may lag behind the reward model."""
        given = self.run.judge_staleness_bound
        return self.run.staleness_bound if given is None else given

    @property
    def correction(self) -> Correction:
        """The off-policy correction in force; `auto` and what depends on it are decided."""
        return self.algorithm.resolved.correction(self.run.staleness_bound)

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        """Refuse combinations that sections or methods refuse."""
        try:
            self.algorithm.resolved  # noqa: B018 (it raises)
        except ConfigError as error:
            part = "" if error.detail.startswith("preset") else "overrides."
            raise ValueError(f"algorithm.{part}{error.detail}") from None
        sections = [section for _, section in self if isinstance(section, Section)]
        for refusing in (*sections, *self.methods_used.values()):
            for impossible, why in refusing.conflicts(self):
                if impossible:
                    raise ValueError(why)
        return self
