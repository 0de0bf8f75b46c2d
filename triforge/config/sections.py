"""Sections of a run's document, one a service. A section is what travels to workers and learners."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.registry import Only
from triforge.config.base import (
    Conflicts,
    Params,
    Positive,
    Seconds,
    Section,
    Share,
)
from triforge.config.parts import CONTROLLERS, SCORERS, STRATEGIES
from triforge.methods import Controller, Method, Scorer, Strategy

_WANDB = Only(
    lambda s: bool(s.wandb_project), "a wandb_project: nothing is sent to Weights & Biases"
)
_TRACKED = Only(
    lambda s: s.tensorboard or s.wandb_project,
    "a tracker: no rollouts are sent",
)
StrategyName = Annotated[str, AfterValidator(STRATEGIES.checked)]
ControllerName = Annotated[str, AfterValidator(CONTROLLERS.checked)]
ScorerName = Annotated[str, AfterValidator(SCORERS.checked)]


class RunSection(Section):
    """The length of a run, its seed and its bounds."""

    name: str = Field("run", max_length=200)
    """Name shown to people."""
    seed: int = Field(1, ge=0, le=2**32 - 1)
    """Seed of everything that is drawn."""
    steps: int = Field(30, ge=0)
    """Training steps; each trains every model once. 0 only evaluates, once."""
    groups_per_step: Positive = 16
    """Task versions played a step, in addition to the pairs that measure rewrites (`adaptation.pairs_on_top`); unset, at most as many as the pool has training tasks."""
    staleness_bound: int = Field(0, ge=0)
    """Versions a trained token may lag behind the learner; 0 is synchronous."""
    late_groups: Literal["wait", "mask"] = "wait"
    """Groups too slow for the bound: `wait` for them, or `mask` the steps that are over it."""
    judge_staleness_bound: int | None = Field(None, ge=0)
    """Versions a vote may lag behind the reward model; none is `staleness_bound`."""
    stale_votes: Literal["rejudge", "drop"] = "rejudge"
    """Votes over that bound: cast again, or left out of the credit of their group."""
    min_measured: Positive = 2
    """Measured rollouts without which a group is not trained on."""
    eval_every: int = Field(10, ge=0)
    """Steps between evaluations; 0 never evaluates."""
    eval_tasks: int = Field(64, ge=0)
    """Held-out tasks an evaluation plays."""
    eval_rollouts: int = Field(1, ge=1, le=64)
    """Sampled episodes of each held-out task in an evaluation; greedily it is played once."""
    eval_greedy: bool = True
    """Evaluate greedily as well as sampled."""
    keep_checkpoints: Positive = 3
    """Weight versions kept a model, and that of the best evaluation; also checkpoints, with their versions."""
    checkpoint_every: Positive = 1
    """Steps from one checkpoint of a learner's optimiser to the next. Above 1 it is written while the next step is played, and the
    rows of the steps since are kept: a learner that restarts trains on them again, from the last checkpoint."""
    colocate: bool = False
    """One card for engines and learners: each has its memory in turn, while the others keep theirs in the machine's. Synchronous runs alone."""
    step_deadline_s: Seconds = 1800.0
    """A step that gathers for longer fails the run with the reason."""

    def conflicts(self, config: Any) -> Conflicts:
        """Refuse runs without work, and bounds that nothing keeps."""
        algorithm, rollouts = config.algorithm.resolved, config.env_adapter.rollouts
        yield (
            self.steps == 0 and not (self.eval_every and self.eval_tasks),
            "run.steps: given 0 with run.eval_every or run.eval_tasks = 0, expected a training step or an evaluation: this run "
            "has nothing to do",
        )
        yield (
            self.colocate and self.staleness_bound > 0,
            f"run.colocate: given true with run.staleness_bound = {self.staleness_bound}, allowed only with 0: nothing is "
            "played while a learner has the card",
        )
        yield (
            self.staleness_bound > 0 and algorithm.off_policy == "none",
            f"run.staleness_bound: given {self.staleness_bound} with algorithm.overrides.off_policy = 'none', allowed 0, or a "
            "correction for samples of older weights ('auto', 'decoupled', 'tis', 'mis'), or 'bypass' to go without one knowingly",
        )
        yield (
            config.vote_bound > self.staleness_bound,
            f"run.judge_staleness_bound: given {config.vote_bound}, allowed at most run.staleness_bound = "
            f"{self.staleness_bound}: no vote becomes older than that",
        )
        yield (
            self.stale_votes == "drop" and not algorithm.use_outcome,
            "run.stale_votes: given 'drop', allowed 'rejudge': the preset rewards the policy by votes alone (use_outcome = "
            "false), so nothing would be left of a group without them",
        )
        yield (
            self.min_measured > rollouts,
            f"run.min_measured: given {self.min_measured}, allowed at most env_adapter.rollouts = {rollouts}: no group would "
            "ever be trained on",
        )


class EnvAdapterSection(Section):
    """How episodes are played."""

    played_by: Literal["workers", "sessions", "trainer"] = "workers"
    """`workers` play the environment; with `sessions` agents of yours do, each in a session of its own (docs/agents.md); with `trainer`
    another trainer draws tasks and reports what its own policy did (docs/sidecar.md)."""
    strategy: StrategyName = "group"
    """`group` plays K episodes of a task; a method with a strategy, by its name or path, draws them otherwise. Groups that measure the
    policy are played as `group` in any case."""
    rollouts: Annotated[int, Field(ge=2, le=256)] = 8
    """K: rollouts of one task version, compared with each other."""
    max_steps: Positive = 14
    """Steps after which an episode is a failure."""
    options: Params = Field(default_factory=dict)
    """Options of the environment family (wording, action format). Those that a run is started with win over its pool's
    `options`, and those over the deployment's document."""
    admissible_only: bool = False
    """Hold responses to the admissible commands; for environments whose responses are commands."""
    episode_deadline_s: Seconds = 300.0
    """An episode that takes longer is an infrastructure failure."""
    episode_retries: int = Field(2, ge=0)
    """Fresh tries after an infrastructure failure."""
    concurrency: Positive = 64
    """Episodes in flight in one worker."""

    @property
    def chosen(self) -> Strategy:
        """The strategy that `strategy` names."""
        return STRATEGIES.find(self.strategy)

    @property
    def by_agents(self) -> bool:
        """Whether programs of the user play the episodes: agents in sessions, or a trainer."""
        return self.played_by != "workers"

    @property
    def by_trainer(self) -> bool:
        """Whether the policy belongs to another trainer: it is neither served nor trained here."""
        return self.played_by == "trainer"

    def conflicts(self, config: Any) -> Conflicts:
        """Refuse estimators and jobs that read the rollouts of the strategy as something else."""
        algorithm, chosen = config.algorithm.resolved, self.chosen
        given = f"env_adapter.strategy: given {self.strategy!r}"
        yield (
            chosen.siblings is not algorithm.estimator_part.siblings,
            f"{given} with algorithm estimator = {algorithm.estimator!r}, expected an estimator of candidates for one turn "
            "(at_grpo: 'branch') with a strategy that draws some ('at_grpo'), and any other with the others: candidates are "
            "compared in the state that they share, steps of one index and whole trajectories are not",
        )
        yield (
            not chosen.draws_policy and not (algorithm.imitates and not algorithm.job_part.pairs),
            f"{given} with algorithm.overrides.job = {algorithm.job!r}, allowed 'distil' or 'ce': a response that was selected "
            "is no draw of the policy, so its ratios and advantages would be wrong",
        )
        special = bool(chosen.part)
        yield (
            special and self.by_agents,
            f"{given} with env_adapter.played_by = {self.played_by!r}, allowed only with 'workers': agents and trainers draw their "
            "own responses",
        )
        scorer = config.reward.chosen
        played = scorer.needs_temperature_one or scorer.needs_programs or scorer.needs_labels
        for ours, what in (
            (config.run.eval_every and config.run.eval_tasks, "run.eval_every above 0"),
            (algorithm.needs_critic, "a critic (algorithm.overrides.estimator)"),
            (config.algorithm_of("reward").job_part.pairs, "a reward model that learns from pairs"),
            (played, f"reward.kind = {config.reward.kind!r}"),
            *((part, part) for part in (o.needs_policy for o in config.methods_used.values())),
        ):
            yield (
                self.by_trainer and bool(ours),
                f"env_adapter.played_by: given 'trainer' with {what}, allowed only without: the policy, its tokens and its environment "
                "are the trainer's; change it, or have the policy played and trained here with 'workers'",
            )
        yield (
            self.played_by == "sessions" and (scorer.needs_programs or scorer.needs_labels),
            f"env_adapter.played_by: given 'sessions' with reward.kind = {config.reward.kind!r}, allowed only with 'workers': the turns "
            "of an agent have neither labels nor programs of the environment",
        )
        yield (
            special and config.adaptation.adapts,
            f"{given} with adaptation.controller = {config.adaptation.controller!r}, allowed only with 'none': selected "
            "responses do not show how difficult a task is for the policy",
        )


class AdaptationSection(Section):
    """How tasks change."""

    controller: ControllerName = "llm_rewrite"
    """`llm_rewrite`, `none` (every task stays as it is), or a method with a controller, by its name or path."""
    original_share: Share = 0.0
    """Share of the pool's slots that keep their original tasks."""
    max_pending: int = Field(2, ge=0)
    """Proposals measured at the same time."""
    pairs_on_top: bool = True
    """Play the pairs that measure proposals in addition to `run.groups_per_step` groups, instead of in place of two of them each."""
    max_proposals: int = Field(0, ge=0)
    """Proposals of the whole run; 0 is no limit."""
    max_consecutive: int = Field(8, ge=0)
    """Measured rewrites of a slot in a row without a group inside the band; 0 is no limit."""
    max_drift: Share = 0.75
    """Distance from the slot's root that a rewrite may have, 0 to 1."""
    keep_goal: bool = True
    """Offer a rewrite of another kind of goal only where none of the same kind is left, or three were measured and rejected."""
    candidates: Annotated[int, Field(ge=1, le=16)] = 3
    """Answers asked of the rewriter; of those that pass all checks the one that changes least is measured."""
    max_rollouts: Annotated[int, Field(ge=8)] = 64
    """Fresh rollouts of parent and of candidate, each, before the verdict."""
    max_version_gap: int | None = Field(None, ge=0)
    """Policy versions that the two groups of a pair may span; none is `run.staleness_bound`."""
    diagnosis: Literal["facts", "model"] = "facts"
    """Source of the text on failed attempts that the rewriter reads. `facts`: a program names the sub-goal that was missed and the
    step with the worst votes; for families without sub-goals a model explains. `model`: a model explains, with the facts in its prompt."""
    diagnosis_tokens: Positive = 48
    """Tokens of one answer of the diagnosis."""
    diagnosis_budget: int = Field(512, ge=0)
    """Tokens of the whole diagnosis of a proposal; 0 makes none."""
    notes: Positive = 2
    """Trajectories the diagnosis of a proposal reads."""
    deadline_s: Seconds = 600.0
    """A proposal that is not drafted by then is invalid."""
    solver_tries: Annotated[int, Field(ge=1, le=256)] = 8
    """Tries of the solver at a candidate that its family cannot prove."""
    null_control: Share = 0.0
    """Share of proposals whose candidate is the unchanged parent: measures false acceptance."""

    @property
    def chosen(self) -> Controller:
        """The controller that `controller` names."""
        return CONTROLLERS.find(self.controller)

    @property
    def method(self) -> Method | None:
        """The method that the controller belongs to; None for a controller of the core."""
        return CONTROLLERS.method(self.controller)

    @property
    def adapts(self) -> bool:
        """Whether tasks change."""
        return bool(self.chosen.part)

    def conflicts(self, config: Any) -> Conflicts:
        """Refuse measurements of rewrites that could not be made."""
        rollouts, groups = config.env_adapter.rollouts, config.run.groups_per_step
        yield (
            self.max_rollouts < rollouts,
            f"adaptation.max_rollouts: given {self.max_rollouts}, expected at least env_adapter.rollouts = {rollouts}: a proposal "
            "is measured in whole groups",
        )
        yield (
            self.chosen.rewrites and not self.pairs_on_top and groups < 2,
            f'run.groups_per_step: given {groups}, expected at least 2 with adaptation.controller = "{self.controller}" and '
            "pairs_on_top = false: a rewrite is measured by a pair of groups, so none would ever be decided",
        )


class RewardSection(Section):
    """How steps are judged."""

    kind: ScorerName = "votes"
    """`votes` of the reward model; step scores that train no judge: `shuffled` votes, an `oracle`, `praise` (+1 on every step), the
    policy's `log_ratio` to a reference; a method with step scores, by its name or path; or `package.module:function`."""
    votes: Annotated[int, Field(ge=1, le=64)] = 3
    """m: votes a step; of a method that judges groups, the texts a group or the comparisons a rollout."""
    prompt: Literal["rubric", "terse"] = "rubric"
    """Form of a judge's prompt: `rubric` asks for reasons before the vote, `terse` suits small closed vocabularies."""
    shows: Annotated[
        tuple[Literal["rubric", "reference", "episode"], ...],
        Only(
            lambda s: s.chosen.shows_task,
            'kind = "votes", "shuffled" or a method that shows its judge the task: no other does',
        ),
    ] = ()
    """Shown to judges besides: the task's `rubric`, a vote of each point; a `reference` solution; the whole `episode` before the question."""
    accuracy: Annotated[
        Share, Only(lambda s: s.chosen.needs_labels, 'kind = "oracle": no other votes are planted')
    ] = 1.0
    """Chance that a vote of the oracle is the environment's label of the step."""
    errors: Annotated[
        Literal["lot", "repeat"],
        Only(lambda s: s.chosen.needs_labels, 'kind = "oracle": no other votes are planted'),
    ] = "lot"
    """Wrong votes of the oracle: by `lot`, or the same for an action with the same result (`repeat`), which a policy can learn to
    collect."""
    audit_share: Share = 0.1
    """Share of the rollouts whose steps are audited, where the environment labels its steps: `judge_target = "label"` trains on their labels."""
    deadline_s: Seconds = 300.0
    """A judge job that takes longer fails; of a method that judges groups, each of its phases."""

    @property
    def chosen(self) -> Scorer:
        """The source of step scores that `kind` names."""
        return SCORERS.find(self.kind)

    def conflicts(self, config: Any) -> Conflicts:
        """Refuse algorithms and models that the step scores do not fit."""
        algorithm, chosen = config.algorithm.resolved, self.chosen
        policy, reward = config.models.policy, config.models.reward
        given = f"reward.kind: given {self.kind!r}"
        yield (
            algorithm.train_reward_model and not chosen.trains_judge,
            f"{given} with algorithm.overrides.train_reward_model = true, allowed only with false: there are no votes that the "
            "reward model could learn from",
        )
        yield (
            algorithm.vote_weight == "trust" and not chosen.casts_votes,
            f"{given} with algorithm.overrides.vote_weight = 'trust', allowed only with 'constant': trust is measured on votes, "
            "and there are none",
        )
        yield (
            chosen.needs_temperature_one and policy.temperature != 1.0,
            f"{given} with models.policy.temperature = {policy.temperature}, allowed only with 1.0: engines score a prompt at "
            "temperature 1",
        )
        yield (
            chosen.needs_reference and reward.path != policy.path,
            f"{given} with models.reward.path = {reward.path!r}, expected models.policy.path = {policy.path!r}: the reward "
            "model's service holds the reference, the weights that the policy starts from",
        )


class ReportSection(Section):
    """Where the reports of committed steps go. Every step is on record in any case (`GET /v1/runs/{id}/steps`)."""

    tensorboard: bool = False
    """Write event files to `runs/<id>/tensorboard` of the artifact store, a local folder."""
    wandb_project: str = Field("", max_length=128)
    """Project of Weights & Biases; empty sends nothing. The trainer reads `WANDB_API_KEY`."""
    wandb_entity: Annotated[str, _WANDB] = Field("", max_length=128)
    """Who owns the project; empty is the key's default."""
    wandb_mode: Annotated[Literal["online", "offline"], _WANDB] = "online"
    """`offline` writes files for `wandb sync` to `runs/<id>` of the artifact store."""
    rollouts: Annotated[int, _TRACKED] = Field(8, ge=0, le=100)
    """How many rollouts of each step go there, as a table or as texts."""


EngineName = Literal["local", "sglang", "vllm"]


def _counted(text: str) -> str:
    if not re.fullmatch(r"(\d{1,3}(x\d{1,4}GB)?)?", text, re.ASCII):
        raise ValueError("expected a number of cards, as 8, or for a plan 8x80GB")
    return text


class MachineSection(Section):
    """The machine of `triforge train` and `triforge up`, read at their start alone; `triforge plan` shows what goes where."""

    engine: Literal["auto", EngineName] = "auto"
    """Engine that serves the models: `auto` is SGLang where `gpus` is above 0, else the local engine."""
    gpus: Annotated[str, AfterValidator(_counted)] = ""
    """Cards that engines and learners divide: a number, as `8`; `0` is none; `8x80GB` is a plan of another machine. Empty takes all that
    `nvidia-smi` lists; with the local engine it leaves them to each process."""

    @property
    def serving(self) -> EngineName:
        """The engine that serves the models."""
        if self.engine != "auto":
            return self.engine
        return "sglang" if int(self.gpus.partition("x")[0] or 0) else "local"

    @property
    def divides(self) -> bool:
        """Whether each engine and learner gets cards of its own, or none."""
        return self.gpus != "" or self.serving != "local"


class AlgorithmSection(Section):
    """The preset, and the options that differ from it."""

    preset: str = "rlanything"
    """Name of a preset."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Fields of the preset to change, by name."""

    @cached_property
    def resolved(self) -> Algorithm:
        """The preset with its overrides applied."""
        return resolve(self.preset, self.overrides)
