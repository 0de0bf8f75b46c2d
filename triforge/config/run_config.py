"""The document of a run, whole, and the combinations of its sections that are refused."""

from __future__ import annotations

from functools import cached_property

from pydantic import model_validator

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.off_policy import Correction
from triforge.config.action_critic import ActionCriticSection
from triforge.config.base import Role, Section
from triforge.config.methods import MethodOptions, MethodsSection, options_of
from triforge.config.sections import (
    AdaptationSection,
    AlgorithmSection,
    EnvAdapterSection,
    ModelsSection,
    ReportSection,
    RewardSection,
    RunSection,
)
from triforge.config.training import CriticSection, LearnerSection, TrainerSection
from triforge.errors import ConfigError
from triforge.methods import Method, find, known, preset_owner

# step scores from which no judge can learn
_NOT_LEARNED = ("shuffled", "oracle", "log_ratio", "vlm_contrast")
_UNIT_TESTS = {  # are allowed
    "vote_weight": ("constant",),
    "estimator": ("step_index", "group"),
    "judge_target": ("published",),
}


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
    methods: MethodsSection = MethodsSection()

    @cached_property
    def methods_used(self) -> dict[Method, MethodOptions]:
        """Each method that the run uses, in the order of their names, with its options.

        A method is used if the document has its section, names one of its presets or its controller, or if it is a default.
        """
        used = {find(name): options for name, options in self.methods.named.items()}
        owner = preset_owner(self.algorithm.preset)
        installed = (find(name) for name in known())
        for method in installed:
            if method.default or method is owner:
                used.setdefault(method, options_of(method)())
        if (named := self.adaptation.method) is not None:
            used.setdefault(named, options_of(named)())
        return dict(sorted(used.items(), key=lambda item: item[0].name))

    @property
    def judge_is_policy(self) -> bool:
        """Whether the policy answers for the reward model."""
        return any(options.judge_is_policy for options in self.methods_used.values())

    @property
    def trained(self) -> tuple[Role, ...]:
        """The models that the run trains: those that play, and those that judge if votes are asked for."""
        return tuple(r for r in self.models.trainable if r not in self.models.judging or self.votes)

    @property
    def votes(self) -> int:
        """Votes a step, or tests a group, that the run asks for; 0 where its algorithm reads none: no reward model takes part."""
        algorithm = self.algorithm.resolved
        by_tests = self.reward.kind == "unit_tests"  # they do not enter the policy's reward
        needed = algorithm.train_reward_model if by_tests else algorithm.needs_votes
        return self.reward.votes if needed else 0

    def algorithm_of(self, role: Role) -> Algorithm:
        """The algorithm as the learner of a model reads it."""
        algorithm, job = self.algorithm.resolved, self.trainer.job(role)
        if role not in self.models.judging:
            return algorithm.of_job(job) if job else algorithm
        if self.reward.kind == "implicit":
            return algorithm.of_implicit_rewards(self.reward.beta)
        return algorithm.of_reward_model()

    def learner(self, role: Role) -> LearnerSection:
        """The section of a trained model's learner."""
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
        try:
            preset = self.algorithm.resolved
        except ConfigError as error:
            part = "" if error.detail.startswith("preset") else "overrides."
            raise ValueError(f"algorithm.{part}{error.detail}") from None
        if self.run.steps == 0 and not (self.run.eval_every and self.run.eval_tasks):
            raise ValueError(
                "run.steps: given 0 with run.eval_every or run.eval_tasks = 0, expected a training step or an evaluation: "
                "this run does nothing"
            )
        self._demand_obedience(preset)
        self._demand_staleness(preset)
        self._demand_unit_tests(preset)
        self._demand_step_scores(preset)
        self._demand_tree(preset)
        self._demand_further(preset)
        self._demand_one_base()
        self._demand_best_of_k(preset)
        self._demand_methods()
        if self.adaptation.max_rollouts < self.env_adapter.rollouts:
            raise ValueError(
                f"adaptation.max_rollouts: given {self.adaptation.max_rollouts}, expected at least "
                f"env_adapter.rollouts = {self.env_adapter.rollouts}: a proposal is measured in whole groups"
            )
        adaptation = self.adaptation
        if (
            adaptation.chosen.rewrites
            and not adaptation.pairs_on_top
            and self.run.groups_per_step < 2
        ):
            raise ValueError(
                f"run.groups_per_step: given {self.run.groups_per_step}, expected at least 2 with adaptation.controller = "
                f'"{adaptation.controller}" and pairs_on_top = false: a rewrite is measured by a pair of groups, so none '
                "would ever be decided"
            )
        for role, model in (self.models.players | self.models.judging).items():
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

    def _demand_methods(self) -> None:
        """Refuse what a used method refuses."""
        for options in self.methods_used.values():
            for impossible, sentence in options.conflicts(self):
                if impossible:
                    raise ValueError(sentence)

    def _demand_unit_tests(self, preset: Algorithm) -> None:
        """Refuse what compares steps or reads votes where programs are compared and nobody votes."""
        for field, allowed in _UNIT_TESTS.items():
            given = getattr(preset, field)
            if self.reward.kind == "unit_tests" and given not in allowed:
                raise ValueError(
                    f"reward.kind: given 'unit_tests' with algorithm {field} = {given!r}, allowed {' or '.join(allowed)}: "
                    "whole programs are compared, and nobody votes"
                )

    def _demand_tree(self, preset: Algorithm) -> None:
        """Refuse tree rollouts that nothing compares as such, and what reads a candidate as the next step of a trajectory."""
        section, tree = self.env_adapter, self.env_adapter.strategy == "tree"
        if tree is not preset.estimator_part.siblings:
            raise ValueError(
                f"env_adapter.strategy: given {section.strategy!r} with algorithm estimator = {preset.estimator!r}, allowed 'tree' "
                "with 'branch' and 'group' with the others: candidates for one turn are compared in the state that they share, "
                "while steps of one index, and whole trajectories, are of other states"
            )
        others = {
            "env_adapter.played_by": section.played_by != "workers",
            "adaptation.controller": self.adaptation.adapts,
        }
        if tree and any(others.values()):
            raise ValueError(
                f"{next(name for name, given in others.items() if given)}: allowed with env_adapter.strategy = 'tree' only 'workers', "
                "'none' and without weights: only a worker can go back to a state, and the best of K candidates a turn says "
                "nothing of how difficult a task is, nor is each what came after the one before"
            )

    def _demand_best_of_k(self, preset: Algorithm) -> None:
        """Refuse what takes the critic's choice for the policy's own, and a critic that nobody asks."""
        section = self.env_adapter
        if section.strategy != "critic_best_of_k":
            if self.trainer.action_critic != ActionCriticSection():
                raise ValueError(
                    f"trainer.action_critic: given with env_adapter.strategy = {section.strategy!r}, allowed only with "
                    "'critic_best_of_k': nothing else asks it"
                )
            return
        if preset.job not in ("ce", "distil"):
            raise ValueError(
                f"env_adapter.strategy: given 'critic_best_of_k' with algorithm.overrides.job = {preset.job!r}, allowed 'distil' or "
                "'ce': the best of K samples is no draw of the policy, so its ratios and advantages would be wrong"
            )
        if section.edits and any(model.regex for model in self.models.players.values()):
            raise ValueError(
                f"env_adapter.edits: given {section.edits} with an expression of models.policy.regex, allowed 0: it holds from a "
                "response's first token on, and not for a tail"
            )
        if section.played_by != "workers" or self.adaptation.adapts:
            raise ValueError(
                f"env_adapter.strategy: given 'critic_best_of_k' with env_adapter.played_by = {section.played_by!r} and "
                f"adaptation.controller = {self.adaptation.controller!r}, allowed only with 'workers' and 'none': agents of "
                "yours choose for themselves, and the critic's choice says nothing of how difficult a task is for the policy"
            )

    def _demand_step_scores(self, preset: Algorithm) -> None:
        """Refuse a judge that would learn from what no judge said, and log-ratios of what cannot be compared."""
        kind, policy, reward = self.reward.kind, self.models.policy, self.models.reward
        if kind in _NOT_LEARNED and preset.train_reward_model:
            raise ValueError(
                f"reward.kind: given {kind!r} with algorithm.overrides.train_reward_model = true, allowed only with false: "
                "there are no votes that the reward model could learn from"
            )
        if kind == "vlm_contrast" and preset.vote_weight == "trust":
            raise ValueError(
                "reward.kind: given 'vlm_contrast' with algorithm.overrides.vote_weight = 'trust', allowed only with "
                "'constant': trust is measured on votes, and nobody votes"
            )
        if kind == "implicit" and (preset.estimator != "fused" or not preset.train_reward_model):
            raise ValueError(
                f"reward.kind: given 'implicit' with algorithm estimator = {preset.estimator!r} and train_reward_model = "
                f"{preset.train_reward_model}, allowed only with 'fused' (preset 'istar') and true: its scores have no scale of "
                "their own, and a reward model that learns nothing has none"
            )
        if kind in ("log_ratio", "implicit") and policy.temperature != 1.0:
            raise ValueError(
                f"reward.kind: given {kind!r} with models.policy.temperature = {policy.temperature}, allowed only with 1.0: "
                "engines score a prompt at temperature 1"
            )
        if kind == "log_ratio" and reward.path != policy.path:
            raise ValueError(
                f"reward.kind: given 'log_ratio' with models.reward.path = {reward.path!r}, expected models.policy.path = "
                f"{policy.path!r}: the reward model's service holds the reference, the weights that the policy starts from"
            )

    def _demand_further(self, preset: Algorithm) -> None:
        """Refuse what reads the samples of policy and reward model alone where others play or judge; and learners of no model."""
        for name in self.trainer.__pydantic_extra__.keys() - set(self.models.trainable):
            raise ValueError(
                f"trainer.{name}: unknown field; allowed are {', '.join(TrainerSection.model_fields)}, and names of models that "
                "play or judge agents (models.NAME.agents, models.NAME.judges)"
            )
        for name in list(self.models.judging)[1:]:
            sessions = self.env_adapter.played_by == "sessions"
            if sessions or self.reward.kind != "votes":
                raise ValueError(
                    f"models.{name}.judges: given with reward.kind = {self.reward.kind!r} and env_adapter.played_by = "
                    f"{self.env_adapter.played_by!r}, allowed only with 'votes' and 'workers': "
                    "nothing else asks a model of its own about the steps of an agent"
                )
            if job := self.trainer.job(name):
                raise ValueError(
                    f"trainer.{name}.job: given {job!r}, allowed none: a model that judges is trained on its votes"
                )
        alone = {
            "env_adapter.played_by = 'sessions'": self.env_adapter.played_by == "sessions",
            "reward.kind = 'log_ratio'": self.reward.kind == "log_ratio",
            "reward.kind = 'implicit'": self.reward.kind == "implicit",
            "reward.kind = 'unit_tests'": self.reward.kind == "unit_tests",
            "a critic (algorithm.overrides.estimator)": preset.needs_critic,
        }
        for name in list(self.models.players)[1:]:
            for what, asked in alone.items():
                if asked:
                    raise ValueError(
                        f"models.{name}: given with {what}, which takes the policy for the only model that plays"
                    )
            strategy, imitates = self.env_adapter.strategy, self.algorithm_of(name).imitates
            if (strategy == "tree" and imitates) or (
                strategy == "critic_best_of_k" and not imitates
            ):
                raise ValueError(
                    f"trainer.{name}.job: given {self.trainer.job(name)!r} with env_adapter.strategy = {strategy!r}, allowed no imitation "
                    "with 'tree', whose candidates are no whole rollouts, and only imitation with 'critic_best_of_k', where "
                    "the best of K samples is no draw of the model"
                )

    def _demand_one_base(self) -> None:
        """Refuse engines of another model for what is no adapter over that model's base."""
        served = self.models.players | self.models.judging
        for name, model in (served | {"rewriter": self.models.rewriter}).items():
            owner = served.get(model.engines_of)
            ranks = [self.learner(role).lora_rank for role in (name, model.engines_of)]
            fits = (
                owner and owner is not model and not owner.engines_of and owner.path == model.path
            )
            trained = fits and name in self.trained and model.engines_of in self.trained
            if model.engines_of and not (trained and all(ranks) and not self.run.colocate):
                raise ValueError(
                    f"models.{name}.engines_of: given {model.engines_of!r}, expected another trained model with engines of its "
                    "own and the same path, both with lora_rank above 0, and run.colocate = false: engines serve several models "
                    "only as adapters over one base"
                )

    def _demand_obedience(self, preset: Algorithm) -> None:
        """Refuse options of trainings that do not take place."""
        critic = self.trainer.critic
        changed = [name for name, value in CriticSection() if getattr(critic, name) != value]
        if changed and not preset.needs_critic:
            raise ValueError(
                f"trainer.critic: given {', '.join(changed)} with algorithm preset {preset.name!r}, allowed only with "
                "algorithm.overrides.estimator = 'gae' or 'bilevel_gae': nothing else has a critic"
            )
        if preset.job == "critic" and critic.alone_steps:
            raise ValueError(
                f"trainer.critic.alone_steps: given {critic.alone_steps} with algorithm.overrides.job = 'critic', allowed "
                "only with 'pg': all steps train the critic alone"
            )

    def _demand_staleness(self, preset: Algorithm) -> None:
        """Refuse bounds that nothing keeps and votes that nothing can stand in for."""
        run = self.run
        if run.colocate and run.staleness_bound > 0:
            raise ValueError(
                f"run.colocate: given true with run.staleness_bound = {run.staleness_bound}, allowed only with 0: nothing can be "
                "played while a learner has the card"
            )
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
