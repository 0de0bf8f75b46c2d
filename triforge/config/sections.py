"""The document of a run: one section a service, `RunConfig` the whole."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.off_policy import Correction
from triforge.config.auxiliary import AuxiliarySection
from triforge.config.base import (
    ControllerName,
    Params,
    Positive,
    Sampling,
    Seconds,
    Section,
    Tokens,
)
from triforge.config.critic import CriticSection
from triforge.config.learner import LearnerSection
from triforge.config.reporting import ReportSection
from triforge.config.unread import unread
from triforge.errors import ConfigError


class RunSection(Section):
    """What is run and for how long."""

    name: str = Field(default="run", max_length=200, description="Name shown to people.")
    seed: int = Field(
        default=1, ge=0, le=2**32 - 1, description="Seed of everything that is drawn."
    )
    steps: int = Field(
        default=30,
        ge=0,
        description="Training steps; each trains both models once. 0 only evaluates, once.",
    )
    groups_per_step: Positive = Field(default=16, description="Task versions played a step.")
    staleness_bound: int = Field(
        default=0,
        ge=0,
        description="Versions a trained token may lag behind the learner; 0 is synchronous.",
    )
    late_groups: Literal["wait", "mask"] = Field(
        default="wait",
        description="Groups too slow for the bound: `wait` for them, or `mask` the steps that are over it.",
    )
    judge_staleness_bound: int | None = Field(
        default=None,
        ge=0,
        description="Versions a vote may lag behind the reward model; none is `staleness_bound`.",
    )
    stale_votes: Literal["rejudge", "drop"] = Field(
        default="rejudge",
        description="Votes over that bound: cast again, or left out of the credit of their group.",
    )
    min_measured: Positive = Field(
        default=2, description="Measured rollouts without which a group is not trained on."
    )
    eval_every: int = Field(
        default=10, ge=0, description="Steps between evaluations; 0 never evaluates."
    )
    eval_tasks: int = Field(default=64, ge=0, description="Held-out tasks an evaluation plays.")
    eval_greedy: bool = Field(default=True, description="Evaluate greedily as well as sampled.")
    keep_checkpoints: Positive = Field(default=3, description="Weight versions kept a model.")
    step_deadline_s: Seconds = Field(
        default=1800.0, description="A step that gathers for longer fails the run with the reason."
    )


class ModelSection(Section):
    """One model role: which folder, and how it is sampled."""

    path: str = Field(default="", description="Model folder (config, tokenizer, safetensors).")
    temperature: float = Field(default=1.0, ge=0.0, le=5.0, description="Sampling temperature.")
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, description="Nucleus; 1 keeps the full softmax."
    )
    max_new_tokens: Tokens = Field(default=64, description="Tokens a response may have.")
    stop: tuple[str, ...] = Field(default=(), description="Stop strings beside the model's own.")
    regex: str | None = Field(
        default=None,
        description="Expression that every response has to match; none constrains nothing.",
    )

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The section as `Sampling`; `greedy` sets temperature 0."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=0.0 if greedy else self.temperature,
            top_p=self.top_p,
            stop=self.stop,
            regex=self.regex,
        )


class ModelsSection(Section):
    """The three models: policy, reward and rewriter. Every model is served by the policy service."""

    policy: ModelSection = ModelSection()
    reward: ModelSection = ModelSection()
    rewriter: ModelSection = ModelSection(max_new_tokens=256)


class EnvAdapterSection(Section):
    """How episodes are played."""

    rollouts: Annotated[int, Field(ge=2, le=256)] = Field(
        default=8, description="K: rollouts of one task version, compared with each other."
    )
    max_steps: Positive = Field(
        default=14, description="Steps after which an episode is a failure."
    )
    options: Params = Field(
        default_factory=dict,
        description="Options of the environment family (wording, action format).",
    )
    admissible_only: bool = Field(
        default=False,
        description="Hold responses to the admissible commands; for environments whose responses are commands.",
    )
    episode_deadline_s: Seconds = Field(
        default=300.0, description="An episode that takes longer is an infrastructure failure."
    )
    episode_retries: int = Field(
        default=2, ge=0, description="Fresh tries after an infrastructure failure."
    )
    concurrency: Positive = Field(default=64, description="Episodes in flight in one worker.")


class LadderSection(Section):
    """The ladder's window of difficulty levels."""

    levels: Positive = Field(default=4, description="Levels that the window holds.")
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.9, description="Success at the top level that moves the window up."
    )
    rollouts: Positive = Field(
        default=128, description="Measured rollouts of the top level before that is decided."
    )
    start: int = Field(default=0, ge=0, description="Top level at the beginning of the run.")
    options: Params = Field(
        default_factory=dict,
        description="Options of the family's generator that all levels have in common.",
    )


class AdaptationSection(Section):
    """How tasks change."""

    controller: ControllerName = Field(
        default="llm_rewrite",
        description="`llm_rewrite`, `ladder`, `mixed`, or `none`, which leaves every task as it is.",
    )
    mixed_with: Literal["llm_rewrite", "ladder"] = Field(
        default="llm_rewrite", description="What `mixed` does with the slots that may change."
    )
    original_share: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.5, description="Share of the pool's slots that `mixed` never changes."
    )
    max_adapted: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=1.0,
        description="Share of a step's training groups that may play rewritten tasks; the others play their roots.",
    )
    max_pending: int = Field(default=2, ge=0, description="Proposals measured at the same time.")
    adopt_pending: bool = Field(
        default=False,
        description="Go on with the proposals that earlier runs left pending in the pool, instead of withdrawing them.",
    )
    max_proposals: int = Field(
        default=0, ge=0, description="Proposals of the whole run; 0 is no limit."
    )
    max_consecutive: int = Field(
        default=8,
        ge=0,
        description="Measured rewrites of a slot in a row without a group inside the band; 0 is no limit.",
    )
    max_acceptance: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=1.0,
        description="Share of the last `acceptance_window` verdicts that may be acceptances; more are rejected.",
    )
    acceptance_window: Positive = Field(
        default=20, description="Verdicts over which that share is counted."
    )
    max_drift: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.75, description="Distance from the slot's root that a rewrite may have, 0 to 1."
    )
    candidates: Annotated[int, Field(ge=1, le=16)] = Field(
        default=3,
        description="Answers asked of the rewriter; the first that passes all checks is measured.",
    )
    max_rollouts: Annotated[int, Field(ge=8)] = Field(
        default=64,
        description="Fresh rollouts of parent and of candidate, each, before the verdict.",
    )
    max_version_gap: int | None = Field(
        default=None,
        ge=0,
        description="Policy versions that the two groups of a pair may span; none is `run.staleness_bound`.",
    )
    critic_tokens: Positive = Field(default=48, description="Tokens of one answer of the critic.")
    critic_budget: int = Field(
        default=512,
        ge=0,
        description="Tokens of all answers of the critic for a proposal; 0 asks it nothing.",
    )
    notes: Positive = Field(default=2, description="Trajectories the critic reads a proposal.")
    deadline_s: Seconds = Field(
        default=600.0, description="A proposal that is not drafted by then is invalid."
    )
    solver_tries: Annotated[int, Field(ge=1, le=256)] = Field(
        default=8, description="Tries of the solver at a candidate that its family cannot prove."
    )
    null_control: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.0,
        description="Share of proposals whose candidate is the unchanged parent: measures false acceptance.",
    )
    ladder: LadderSection = LadderSection()

    @property
    def rewrites(self) -> bool:
        """Whether tasks are rewritten by a model and measured, so that proposals may be pending."""
        return "llm_rewrite" in (
            self.controller,
            self.mixed_with if self.controller == "mixed" else "",
        )


class RewardSection(Section):
    """How steps are judged."""

    kind: str = Field(
        default="votes",
        pattern=r"^(votes|unit_tests|[A-Za-z_][\w.]*:\w+)$",
        description="How steps are scored: `votes` of the reward model, its `unit_tests` for problems that programs solve, or the path of a step scorer, `package.module:function`.",
    )
    votes: Annotated[int, Field(ge=1, le=64)] = Field(
        default=3, description="m: votes a step; with `unit_tests` tests a problem."
    )
    prompt: Literal["rubric", "terse"] = Field(
        default="rubric",
        description="`terse` suits models with a small closed vocabulary; `unit_tests` have a prompt of their own.",
    )
    deadline_s: Seconds = Field(
        default=300.0,
        description="A judge job that takes longer fails; running the programs of a group on its tests has as long again.",
    )


class TrainerSection(Section):
    """The two learners; that of the policy may have a critic."""

    policy: LearnerSection = LearnerSection()
    reward: LearnerSection = LearnerSection()
    critic: CriticSection = CriticSection()
    aux: AuxiliarySection = AuxiliarySection()


class AlgorithmSection(Section):
    """Which preset, and which of its options are turned."""

    preset: str = Field(default="rlanything", description="Name of a preset.")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Fields of the preset to change, by name."
    )

    def resolved(self) -> Algorithm:
        """The preset with its overrides applied."""
        return self._resolved

    @cached_property
    def _resolved(self) -> Algorithm:
        return resolve(self.preset, self.overrides)


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

    @model_validator(mode="after")
    def _possible(self) -> RunConfig:
        try:
            self.algorithm.resolved()
        except ConfigError as error:
            part = "" if error.detail.startswith("preset") else "overrides."
            raise ValueError(f"algorithm.{part}{error.detail}") from None
        if self.run.steps == 0 and not (self.run.eval_every and self.run.eval_tasks):
            raise ValueError(
                "run.steps: given 0 with run.eval_every or run.eval_tasks = 0, expected a training step or an evaluation: "
                "this run does nothing"
            )
        self._demand_obedience()
        self._demand_staleness()
        self._demand_unit_tests()
        if self.adaptation.max_rollouts < self.env_adapter.rollouts:
            raise ValueError(
                f"adaptation.max_rollouts: given {self.adaptation.max_rollouts}, expected at least "
                f"env_adapter.rollouts = {self.env_adapter.rollouts}: a proposal is measured in whole groups"
            )
        if self.adaptation.rewrites and self.run.groups_per_step < 2:
            raise ValueError(
                f"run.groups_per_step: given {self.run.groups_per_step}, expected at least 2 with adaptation.controller = "
                f'"{self.adaptation.controller}": a rewrite is measured by a pair of groups, so none would ever be decided'
            )
        for role, model in (("policy", self.models.policy), ("reward", self.models.reward)):
            if model.top_p < 1.0:
                raise ValueError(
                    f"models.{role}.top_p: given {model.top_p}, allowed 1.0: the trainer recomputes log-probabilities "
                    "over the full softmax, a cut nucleus would make every ratio wrong"
                )
            if model.temperature == 0.0:
                raise ValueError(
                    f"models.{role}.temperature: given 0, expected above 0: greedy samples of one prompt are "
                    "identical, so no advantage is left to learn from"
                )
        return self

    def _demand_unit_tests(self) -> None:
        """Refuse what compares steps or reads votes where programs are compared and nobody votes."""
        preset = self.algorithm.resolved()
        if self.reward.kind != "unit_tests":
            return
        for field, allowed in (
            ("vote_weight", ("constant",)),
            ("estimator", ("step_index", "group")),
        ):
            given = getattr(preset, field)
            if given not in allowed:
                raise ValueError(
                    f"reward.kind: given 'unit_tests' with algorithm {field} = {given!r}, allowed {' or '.join(allowed)}: "
                    "whole programs are compared, and nobody votes"
                )

    @property
    def vote_bound(self) -> int:
        """Versions a vote may lag behind the reward model."""
        given = self.run.judge_staleness_bound
        return self.run.staleness_bound if given is None else given

    @property
    def correction(self) -> Correction:
        """The off-policy correction in force; `auto` and what depends on it are decided."""
        return self.algorithm.resolved().correction(self.run.staleness_bound)

    def _demand_obedience(self) -> None:
        """Refuse options of trainings that do not take place."""
        preset, critic = self.algorithm.resolved(), self.trainer.critic
        changed = [name for name, value in CriticSection() if getattr(critic, name) != value]
        if changed and not preset.needs_critic:
            raise ValueError(
                f"trainer.critic: given {', '.join(changed)} with algorithm preset {preset.name!r}, allowed only with "
                "algorithm.overrides.estimator = 'gae' or 'bilevel_gae': nothing else has a critic"
            )
        if preset.job == "critic" and self.trainer.aux.wanted:
            raise ValueError(
                "trainer.aux: given weights with algorithm.overrides.job = 'critic', allowed only 0 and measure = false: the "
                "policy is left as it is"
            )
        sentence = unread(self)
        if sentence is not None:
            raise ValueError(sentence)

    def _demand_staleness(self) -> None:
        """Refuse bounds that nothing keeps and votes that nothing can stand in for."""
        run, preset = self.run, self.algorithm.resolved()
        if run.staleness_bound > 0 and preset.off_policy == "none":
            raise ValueError(
                f"run.staleness_bound: given {run.staleness_bound} with algorithm.overrides.off_policy = 'none', allowed 0, "
                "or a correction for samples of older weights ('auto', 'decoupled', 'tis', 'mis'), or 'bypass' to go "
                "without one knowingly"
            )
        if self.vote_bound > run.staleness_bound:
            raise ValueError(
                f"run.judge_staleness_bound: given {self.vote_bound}, allowed at most run.staleness_bound = "
                f"{run.staleness_bound}: no vote becomes older than that"
            )
        if run.stale_votes == "drop" and not preset.use_outcome:
            raise ValueError(
                "run.stale_votes: given 'drop', allowed 'rejudge': the preset rewards the policy by votes alone "
                "(use_outcome = false), so nothing would be left of a group without them"
            )
        if run.min_measured > self.env_adapter.rollouts:
            raise ValueError(
                f"run.min_measured: given {run.min_measured}, allowed at most env_adapter.rollouts = "
                f"{self.env_adapter.rollouts}: no group would ever be trained on"
            )
