"""The document of a run: one section a service, `RunConfig` the whole. A section is what travels to workers and learners."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.off_policy import Correction
from triforge.algorithms.registry import Only
from triforge.algorithms.schedules import Schedule, scheduled_weight
from triforge.config.action_critic import ActionCriticSection
from triforge.config.base import (
    ROLE_NAME,
    ControllerName,
    Params,
    Positive,
    Regex,
    Role,
    Sampling,
    Seconds,
    Section,
    Share,
    Tokens,
)
from triforge.config.contrast import ContrastSection
from triforge.config.monitor import MonitorSection
from triforge.config.phases import PhasesSection
from triforge.errors import ConfigError

_ADAPTER = Only(lambda s: s.lora_rank > 0, "lora_rank above 0: no adapter is trained")
_FALLS = Only(
    lambda s: s.schedule != "constant",
    "schedule = 'linear' or 'cosine': the step size does not fall",
)
_ADDS = Only(lambda s: s.adds, "a weight above 0: nothing is added to the policy's gradient")
_WANTED = Only(
    lambda s: s.wanted,
    "sp.lambda0 or id.lambda0 above 0 or measure = true: no transition is looked at",
)
_WANDB = Only(
    lambda s: bool(s.wandb_project), "a wandb_project: nothing is sent to Weights & Biases"
)
_TRACKED = Only(
    lambda s: s.tensorboard or s.wandb_project or s.trackio_project or s.mlflow_experiment,
    "a tracker: nothing is told of rollouts",
)
Strategy = Literal["group", "tree", "critic_best_of_k"]
# step scores from which no judge can learn
_NOT_LEARNED = ("shuffled", "oracle", "log_ratio", "vlm_contrast")
_UNIT_TESTS = {  # are allowed
    "vote_weight": ("constant",),
    "estimator": ("step_index", "group"),
    "judge_target": ("published",),
}


class RunSection(Section):
    """What is run and for how long."""

    name: str = Field("run", max_length=200)
    """Name shown to people."""
    seed: int = Field(1, ge=0, le=2**32 - 1)
    """Seed of everything that is drawn."""
    steps: int = Field(30, ge=0)
    """Training steps; each trains every model once. 0 only evaluates, once."""
    groups_per_step: Positive = 16
    """Task versions played a step, beside the pairs that measure rewrites (`adaptation.pairs_on_top`); unset, at most as many as the pool has training tasks."""
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
    eval_greedy: bool = True
    """Evaluate greedily as well as sampled."""
    keep_checkpoints: Positive = 3
    """Weight versions kept a model."""
    step_deadline_s: Seconds = 1800.0
    """A step that gathers for longer fails the run with the reason."""


class ModelSection(Section):
    """One model role: which folder, and how it is sampled."""

    path: str = ""
    """Model folder (config, tokenizer, safetensors)."""
    temperature: float = Field(1.0, ge=0.0, le=5.0)
    """Sampling temperature."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Nucleus; 1 keeps the full softmax."""
    max_new_tokens: Tokens = 64
    """Tokens a response may have."""
    stop: tuple[str, ...] = ()
    """Stop strings beside the model's own."""
    regex: Regex | None = None
    """Expression that every response has to match, of at most 10,000 positions with its repetitions written out."""

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The section as `Sampling`; `greedy` sets temperature 0."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=0.0 if greedy else self.temperature,
            top_p=self.top_p,
            stop=self.stop,
            regex=self.regex,
        )


class PlayerSection(ModelSection):
    """A further trained model, under a name of its own, that plays some agents of the environment (docs/training.md).

    `[trainer.NAME]` is its learner, with the fields of `[trainer.policy]`; without that section it is trained as the policy is.
    """

    agents: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()
    """Agents of the environment that it plays; the policy plays those that no model names."""


class ModelsSection(Section):
    """The models: policy, reward and rewriter, and further ones that are trained. Each is served by a policy service of its own.

    The policy plays every agent that no other model names, the reward model judges, the rewriter is not trained.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, PlayerSection]
    policy: ModelSection = ModelSection()
    reward: ModelSection = ModelSection()
    rewriter: ModelSection = ModelSection(max_new_tokens=256)

    @property
    def players(self) -> dict[str, ModelSection]:
        """The models that play, by name; the policy first."""
        return {"policy": self.policy, **self.__pydantic_extra__}

    @property
    def trainable(self) -> tuple[str, ...]:
        """The models that a run may train."""
        policy, *further = self.players
        return (policy, "reward", *further)

    @property
    def agents(self) -> dict[str, str]:
        """Who plays each agent that the policy does not."""
        return {
            agent: name for name, model in self.__pydantic_extra__.items() for agent in model.agents
        }

    @model_validator(mode="after")
    def _play_agents(self) -> ModelsSection:
        for name, model in self.__pydantic_extra__.items():
            if not model.agents:
                raise ValueError(
                    f"{name}: unknown model; allowed are {', '.join(type(self).model_fields)}, and others that name the agents "
                    f"they play (models.{name}.agents)"
                )
            if name in TrainerSection.model_fields or not re.fullmatch(ROLE_NAME, name):
                raise ValueError(
                    f"{name}: no name for a model, expected at most 16 small letters and digits, a letter first, and neither "
                    "'critic' nor 'aux'"
                )
        named = [agent for model in self.__pydantic_extra__.values() for agent in model.agents]
        for agent in named:
            if named.count(agent) > 1:
                raise ValueError(
                    f"{self.agents[agent]}.agents: {agent!r} is played by another model"
                )
        return self


class EnvAdapterSection(Section):
    """How episodes are played."""

    played_by: Literal["workers", "sessions"] = "workers"
    """`workers` play the environment; with `sessions` agents of yours do, each in a session of its own (docs/agents.md)."""
    strategy: Strategy = "group"
    """`group` plays K episodes of a task; `tree` one, with K candidates each turn of which the best is played on;
    `critic_best_of_k` K episodes, each turn of which plays the best of `candidates` by `trainer.action_critic`. What measures the
    policy is played as a `group` in any case."""
    candidates: Annotated[
        int,
        Only(
            lambda s: s.strategy == "critic_best_of_k",
            "strategy = 'critic_best_of_k': nothing else asks a critic",
        ),
    ] = Field(8, ge=2, le=64)
    """Responses sampled a turn for the critic to choose from."""
    team_weight: Annotated[
        float,
        Only(lambda s: s.strategy == "tree", "strategy = 'tree': nothing else weighs candidates"),
    ] = Field(1.0, ge=0, le=100)
    """With `tree`, weight of what a candidate earns for all agents beside what it is worth for its own."""
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


class LadderSection(Section):
    """The ladder's windows of difficulty levels, one a kind of environment where the family has several."""

    levels: Positive = 4
    """Levels that the window holds."""
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Success at the top level that moves a window up."""
    rollouts: Positive = 128
    """Measured rollouts of the top level before that is decided."""
    start: int = Field(0, ge=0)
    """Top level at the beginning of the run."""
    options: Params = Field(default_factory=dict)
    """Options of the family's generator that all levels have in common."""


class AdaptationSection(Section):
    """How tasks change."""

    controller: ControllerName = "llm_rewrite"
    """`llm_rewrite`, `ladder`, `mixed`, `none` (every task stays as it is) or the path of another, `package.module:function`."""
    mixed_with: Literal["llm_rewrite", "ladder"] = "llm_rewrite"
    """What `mixed` does with the slots that may change."""
    original_share: Share = 0.5
    """Share of the pool's slots that `mixed` never changes."""
    max_adapted: Share = 1.0
    """Share of a step's training groups that may play rewritten tasks; the others play roots."""
    max_pending: int = Field(2, ge=0)
    """Proposals measured at the same time."""
    pairs_on_top: bool = True
    """Play the pairs that measure proposals beside `run.groups_per_step` groups, instead of in place of two of them each."""
    adopt_pending: bool = False
    """Go on with proposals that earlier runs left pending, instead of withdrawing them."""
    max_proposals: int = Field(0, ge=0)
    """Proposals of the whole run; 0 is no limit."""
    max_consecutive: int = Field(8, ge=0)
    """Measured rewrites of a slot in a row without a group inside the band; 0 is no limit."""
    max_acceptance: Share = 1.0
    """Share of the last `acceptance_window` verdicts that may be acceptances; more are rejected."""
    acceptance_window: Positive = 20
    """Verdicts over which that share is counted."""
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
    """What the rewriter is told of attempts. `facts`: the sub-goal that is missed and the worst judged step, found by program;
    a model explains where the family has no sub-goals. `model`: a model explains, and is given the facts."""
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
    ladder: LadderSection = LadderSection()

    @property
    def rewrites(self) -> bool:
        """Whether tasks are rewritten by a model and measured, so that proposals may be pending."""
        return self._changer == "llm_rewrite"

    @property
    def climbs(self) -> bool:
        """Whether tasks come from windows of difficulty levels."""
        return self._changer == "ladder"

    @property
    def _changer(self) -> str:
        return self.mixed_with if self.controller == "mixed" else self.controller

    @model_validator(mode="after")
    def _reads_its_ladder(self) -> AdaptationSection:
        if self.ladder != LadderSection() and not self.climbs and ":" not in self.controller:
            raise ValueError(
                f"ladder: given with controller = {self.controller!r} and mixed_with = {self.mixed_with!r}, allowed only with "
                "'ladder' (or 'mixed' with it): nothing else has difficulty levels"
            )
        return self


class RewardSection(Section):
    """How steps are judged."""

    kind: str = Field(
        "votes",
        pattern=r"^(votes|unit_tests|implicit|shuffled|oracle|log_ratio|vlm_contrast|[A-Za-z_][\w.]*:\w+)$",
    )
    """`votes` of the reward model, its `unit_tests` of programs, `implicit` rewards of one that learns from outcomes, or step scores that train no judge: `shuffled` votes, an
    `oracle`, the policy's `log_ratio` to a reference, screenshots against goals in words (`vlm_contrast`), or
    `package.module:function`."""
    mode: Literal["separate", "shared"] = "separate"
    """Whose weights judge: the reward model's, or (`shared`) the policy's own. Then finished rollouts become questions that the
    policy answers and learns from: which attempt was right, and what would have been (docs/algorithms.md, "Shared weights")."""
    recycled: Annotated[
        Positive, Only(lambda s: s.mode == "shared", 'mode = "shared": no question is asked')
    ] = 32
    """Questions to judge, and attempts to mend, a step; at most so many of each."""
    votes: Annotated[int, Field(ge=1, le=64)] = 3
    """m: votes a step; with `unit_tests` tests a problem."""
    prompt: Literal["rubric", "terse"] = "rubric"
    """`terse` suits small closed vocabularies; `unit_tests` have a prompt of their own."""
    accuracy: Annotated[
        Share, Only(lambda s: s.kind == "oracle", 'kind = "oracle": no other votes are planted')
    ] = 1.0
    """Chance that a vote of the oracle is the environment's label of the step."""
    contrast: Annotated[
        ContrastSection,
        Only(lambda s: s.kind == "vlm_contrast", 'kind = "vlm_contrast": nothing else reads goals'),
    ] = ContrastSection()
    beta: Annotated[
        float, Only(lambda s: s.kind == "implicit", 'kind = "implicit": no pairs are compared')
    ] = Field(0.05, gt=0, le=100)
    """What a nat between the implicit reward model and the policy that sampled is worth in its loss."""
    deadline_s: Seconds = 300.0
    """A judge job that takes longer fails; running a group's programs has as long again."""

    @model_validator(mode="after")
    def _has_goals(self) -> RewardSection:
        if self.kind == "vlm_contrast" and not (self.contrast.positive and self.contrast.negative):
            raise ValueError(
                "contrast: given no positive or no negative goal with kind = 'vlm_contrast', expected at least one text of "
                "each: what a screenshot should show, and what it must not"
            )
        return self


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
    def _falls_to_an_end(self) -> LearnerSection:
        if self.schedule != "constant" and self.schedule_updates <= self.warmup_updates:
            raise ValueError(
                f"schedule_updates: given {self.schedule_updates} with schedule {self.schedule!r} and warmup_updates "
                f"{self.warmup_updates}, expected more than those: they say where the fall ends"
            )
        return self


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


class AuxiliaryTermSection(Section):
    """One auxiliary objective."""

    lambda0: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Its weight at the first step, the schedule lowers it; 0 is off."""


class AuxiliarySection(Section):
    """State prediction and inverse dynamics on the transitions that the run itself played (policy only)."""

    sp: AuxiliaryTermSection = AuxiliaryTermSection()
    id: AuxiliaryTermSection = AuxiliaryTermSection()
    schedule: Annotated[Schedule, _ADDS] = "cosine"
    """How the weights fall: to 0 at `t_max`, or not at all."""
    t_max: Annotated[int, _ADDS] = Field(0, ge=0)
    """Steps until the weights are 0; 0 is `run.steps`."""
    layout: Annotated[
        Literal["separate", "in_sequence"],
        Only(
            lambda s: s.wants("sp"),
            "sp.lambda0 above 0 or measure = true: nothing else stands in a played sequence",
        ),
    ] = "separate"
    """State prediction as chat items of their own, or on observations in played sequences."""
    prompt: Annotated[
        Literal["plain", "terse"],
        Only(
            lambda s: s.wants("id") or (s.wanted and s.layout == "separate"),
            "layout = `separate`, id.lambda0 above 0 or measure = true: no item is written",
        ),
    ] = "plain"
    """Wording of separate items: sentences, or three marks for tiny closed vocabularies."""
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
    loss: Annotated[Literal["ce", "clipped_mae"], _ADDS] = "ce"
    """Cross-entropy, or the bounded `min(1 - p, 0.99)`."""
    placebo: Annotated[Literal["none", "shuffle"], _WANTED] = "none"
    """`shuffle` gives every item another one's target: the control."""
    measure: bool = False
    """Measure both objectives also where their weight is 0; trains nothing."""
    measure_gradients: Annotated[bool, _ADDS] = True
    """Compare gradient norms once a step; holds one more gradient meanwhile."""

    @property
    def adds(self) -> bool:
        """Whether anything is added to the policy's gradient."""
        return self.sp.lambda0 > 0 or self.id.lambda0 > 0

    @property
    def wanted(self) -> bool:
        """Whether transitions are looked at at all."""
        return self.wants("sp") or self.wants("id")

    def wants(self, objective: Literal["sp", "id"]) -> bool:
        """Whether rows of an objective are made."""
        return self.measure or (self.sp if objective == "sp" else self.id).lambda0 > 0

    def weights(self, step: int, steps: int) -> dict[Literal["sp", "id"], float]:
        """The weight of each objective in training step `step` (from 1) of a run of `steps`."""
        when = (max(0, step - 1), self.t_max or steps, self.schedule)
        return {
            "sp": scheduled_weight(self.sp.lambda0, *when),
            "id": scheduled_weight(self.id.lambda0, *when),
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


class TrainerSection(Section):
    """The learners, one a trained model; that of the policy may have a critic. A further model has the policy's unless it has a section."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, LearnerSection]
    policy: LearnerSection = LearnerSection()
    reward: LearnerSection = LearnerSection()
    critic: CriticSection = CriticSection()
    action_critic: ActionCriticSection = ActionCriticSection()
    aux: AuxiliarySection = AuxiliarySection()

    def learner(self, role: Role) -> LearnerSection:
        """That of a trained model."""
        return self.reward if role == "reward" else self.__pydantic_extra__.get(role, self.policy)


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
    trackio_project: str = Field("", max_length=128)
    """Project of trackio; empty writes nothing. Its files lie where `TRACKIO_DIR` of the trainer says."""
    mlflow_experiment: str = Field("", max_length=128)
    """Experiment of MLflow; empty sends nothing. The trainer reads `MLFLOW_TRACKING_URI`."""
    rollouts: Annotated[int, _TRACKED] = Field(8, ge=0, le=100)
    """How many rollouts of each step go there, as a table or as texts."""


class AlgorithmSection(Section):
    """Which preset, and which of its options are turned."""

    preset: str = "rlanything"
    """Name of a preset."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Fields of the preset to change, by name."""

    @cached_property
    def resolved(self) -> Algorithm:
        """The preset with its overrides applied."""
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
    phases: PhasesSection = PhasesSection()
    monitor: MonitorSection = MonitorSection()
    report: ReportSection = ReportSection()

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
        self._demand_shared(preset)
        self._demand_tree(preset)
        self._demand_one_player(preset)
        self._demand_phases(preset)
        self._demand_best_of_k(preset)
        if self.adaptation.max_rollouts < self.env_adapter.rollouts:
            raise ValueError(
                f"adaptation.max_rollouts: given {self.adaptation.max_rollouts}, expected at least "
                f"env_adapter.rollouts = {self.env_adapter.rollouts}: a proposal is measured in whole groups"
            )
        adaptation = self.adaptation
        if adaptation.rewrites and not adaptation.pairs_on_top and self.run.groups_per_step < 2:
            raise ValueError(
                f"run.groups_per_step: given {self.run.groups_per_step}, expected at least 2 with adaptation.controller = "
                f'"{adaptation.controller}" and pairs_on_top = false: a rewrite is measured by a pair of groups, so none '
                "would ever be decided"
            )
        for role, model in (*self.models.players.items(), ("reward", self.models.reward)):
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
            "adaptation.controller": self.adaptation.controller != "none",
            "trainer.aux": self.trainer.aux.wanted,
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
        if section.played_by != "workers" or self.adaptation.controller != "none":
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

    def _demand_shared(self, preset: Algorithm) -> None:
        """Refuse a policy whose own verdicts would reward it, and rollouts of which no question can be asked."""
        if self.reward.mode == "separate":
            return
        section = self.env_adapter
        if preset.needs_votes or not preset.use_outcome:
            raise ValueError(
                f"reward.mode: given 'shared' with algorithm preset {preset.name!r}, allowed only with outcomes alone (preset 'spark', "
                "or use_votes and train_reward_model = false): a policy that votes on itself would learn to please its own "
                "verdict, and there is no other reward model to train"
            )
        if section.played_by != "workers" or section.strategy == "tree":
            raise ValueError(
                f"reward.mode: given 'shared' with env_adapter.played_by = {section.played_by!r} and strategy = {section.strategy!r}, "
                "allowed only with 'workers' and whole rollouts: agents of yours answer no questions, and candidates of a tree "
                "are no attempts that succeeded or failed"
            )

    def _demand_one_player(self, preset: Algorithm) -> None:
        """Refuse what reads the policy's own samples alone where other models play as well; and learners of no model."""
        for name in self.trainer.__pydantic_extra__.keys() - self.models.players.keys():
            raise ValueError(
                f"trainer.{name}: unknown field; allowed are {', '.join(TrainerSection.model_fields)}, and names of models that "
                "play agents (models.NAME.agents)"
            )
        alone = {
            "env_adapter.played_by = 'sessions'": self.env_adapter.played_by == "sessions",
            "trainer.aux": self.trainer.aux.wanted,
            "reward.mode = 'shared'": self.reward.mode == "shared",
            "reward.kind = 'log_ratio'": self.reward.kind == "log_ratio",
            "reward.kind = 'implicit'": self.reward.kind == "implicit",
            "reward.kind = 'unit_tests'": self.reward.kind == "unit_tests",
            "a critic (algorithm.overrides.estimator)": preset.needs_critic,
            "phases.controller": self.phases.controller != "single",
        }
        for name in list(self.models.players)[1:]:
            for what, asked in alone.items():
                if asked:
                    raise ValueError(
                        f"models.{name}: given with {what}, which takes the policy for the only model that plays"
                    )

    @property
    def trained(self) -> tuple[Role, ...]:
        """The models that the run trains: those that play, and the reward model if it takes part."""
        return tuple(r for r in self.models.trainable if r != "reward" or self.votes)

    def _demand_phases(self, preset: Algorithm) -> None:
        """Refuse loops whose phases would overlap, or that would fine-tune what is not a policy alone."""
        phases, run = self.phases, self.run
        if phases.controller == "single":
            return
        if run.staleness_bound > 0:
            raise ValueError(
                f"phases.controller: given {phases.controller!r} with run.staleness_bound = {run.staleness_bound}, allowed "
                "only with 0: rollouts of one phase would be trained on in the next"
            )
        if self.env_adapter.strategy == "tree":
            raise ValueError(
                f"phases.controller: given {phases.controller!r} with env_adapter.strategy = 'tree', allowed only with "
                "'group': candidates of a tree are no rollouts that could be imitated whole"
            )
        if preset.job != "pg" or preset.needs_critic:
            raise ValueError(
                f"phases.controller: given {phases.controller!r} with algorithm job = {preset.job!r} and estimator = "
                f"{preset.estimator!r}, allowed 'pg' and an estimator without a critic: exploring is RL, and a critic of "
                "weights that are given up has nothing to say of those that follow"
            )

    @property
    def votes(self) -> int:
        """Votes a step, or tests a group, that the run asks for; 0 where its algorithm reads none: no reward model takes part."""
        algorithm = self.algorithm.resolved
        by_tests = self.reward.kind == "unit_tests"  # they do not enter the policy's reward
        needed = algorithm.train_reward_model if by_tests else algorithm.needs_votes
        return self.reward.votes if needed else 0

    @property
    def reward_algorithm(self) -> Algorithm:
        """The algorithm as the reward model's learner reads it."""
        algorithm = self.algorithm.resolved
        if self.reward.kind == "implicit":
            return algorithm.of_implicit_rewards(self.reward.beta)
        return algorithm.of_reward_model()

    @property
    def vote_bound(self) -> int:
        """Versions a vote may lag behind the reward model."""
        given = self.run.judge_staleness_bound
        return self.run.staleness_bound if given is None else given

    @property
    def correction(self) -> Correction:
        """The off-policy correction in force; `auto` and what depends on it are decided."""
        return self.algorithm.resolved.correction(self.run.staleness_bound)

    def _demand_obedience(self, preset: Algorithm) -> None:
        """Refuse options of trainings that do not take place."""
        critic = self.trainer.critic
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
        if preset.job == "critic" and critic.alone_steps:
            raise ValueError(
                f"trainer.critic.alone_steps: given {critic.alone_steps} with algorithm.overrides.job = 'critic', allowed "
                "only with 'pg': all steps train the critic alone"
            )

    def _demand_staleness(self, preset: Algorithm) -> None:
        """Refuse bounds that nothing keeps and votes that nothing can stand in for."""
        run = self.run
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
