"""Sections of a run's document, one a service. A section is what travels to workers and learners."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.ladder import LadderRule
from triforge.algorithms.registry import Only
from triforge.config.base import (
    ROLE_NAME,
    Params,
    Positive,
    Regex,
    Sampling,
    Seconds,
    Section,
    Share,
    Tokens,
)
from triforge.config.contrast import ContrastSection
from triforge.config.controllers import CONTROLLERS, find_controller
from triforge.config.training import TrainerSection
from triforge.errors import ConfigError
from triforge.methods import Controller, Method, find

_WANDB = Only(
    lambda s: bool(s.wandb_project), "a wandb_project: nothing is sent to Weights & Biases"
)
_TRACKED = Only(
    lambda s: s.tensorboard or s.wandb_project,
    "a tracker: nothing is told of rollouts",
)
Strategy = Literal["group", "tree", "critic_best_of_k"]


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
    colocate: bool = False
    """One card for engines and learners: each has its memory in turn, while the others keep theirs in the machine's. Synchronous runs alone."""
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
    engines_of: str = ""
    """Another trained model whose engines serve this one, too: both as adapters (`lora_rank`) over one base, their `path`."""

    def sampling(self, *, greedy: bool = False) -> Sampling:
        """The section as `Sampling`; `greedy` sets temperature 0."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=0.0 if greedy else self.temperature,
            top_p=self.top_p,
            stop=self.stop,
            regex=self.regex,
        )


_Agents = tuple[Annotated[str, Field(min_length=1, max_length=64)], ...]


class FurtherSection(ModelSection):
    """A further trained model, under a name of its own, that plays or judges some agents of the environment (docs/train.md).

    `[trainer.NAME]` is its learner, with the fields of `[trainer.policy]` and for one that plays `job`, an objective of its own
    in the place of `algorithm.job`; without that section it is trained as the policy is, or the reward model.
    """

    agents: _Agents = ()
    """Agents of the environment that it plays; the policy plays those that no model names."""
    judges: _Agents = ()
    """Agents whose steps it judges; the reward model judges those that no model names."""


class ModelsSection(Section):
    """The models: policy, reward and rewriter, and further ones that are trained. Each is served by a policy service of its own.

    The policy plays every agent that no other model names, the reward model judges every one that no other judges, the rewriter is
    not trained.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, FurtherSection]
    policy: ModelSection = ModelSection()
    reward: ModelSection = ModelSection()
    rewriter: ModelSection = ModelSection(max_new_tokens=256)

    @property
    def players(self) -> dict[str, ModelSection]:
        """The models that play, by name; the policy first."""
        further = self.__pydantic_extra__.items()
        return {"policy": self.policy, **{name: model for name, model in further if model.agents}}

    @property
    def judging(self) -> dict[str, ModelSection]:
        """The models that judge, by name; the reward model first."""
        further = self.__pydantic_extra__.items()
        return {"reward": self.reward, **{name: model for name, model in further if model.judges}}

    @property
    def trainable(self) -> tuple[str, ...]:
        """The models that a run may train."""
        return ("policy", "reward", *self.__pydantic_extra__)

    @property
    def agents(self) -> dict[str, str]:
        """Who plays each agent that the policy does not."""
        return self._named("agents")

    @property
    def judges(self) -> dict[str, str]:
        """Who judges each agent that the reward model does not."""
        return self._named("judges")

    def _named(self, what: Literal["agents", "judges"]) -> dict[str, str]:
        further = self.__pydantic_extra__.items()
        return {agent: name for name, model in further for agent in getattr(model, what)}

    @model_validator(mode="after")
    def _play_agents(self) -> ModelsSection:
        for name, model in self.__pydantic_extra__.items():
            if bool(model.agents) is bool(model.judges):
                raise ValueError(
                    f"{name}: unknown model; allowed are {', '.join(type(self).model_fields)}, and others that name the agents "
                    f"they play (models.{name}.agents) or those they judge (models.{name}.judges), and not both"
                )
            taken = (*TrainerSection.model_fields, "model")  # TRIFORGE_MODEL_ENGINES is of all
            if name in taken or not re.fullmatch(ROLE_NAME, name):
                raise ValueError(
                    f"{name}: no name for a model, expected at most 16 small letters and digits, a letter first, and none of "
                    "'critic' and 'model'"
                )
            for what, done in (("agents", "played"), ("judges", "judged")):
                named: dict[str, str] = getattr(self, what)
                for agent in getattr(model, what):
                    if named[agent] != name:
                        raise ValueError(f"{name}.{what}: {agent!r} is {done} by another model")
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
    edits: Annotated[
        int,
        Only(
            lambda s: s.strategy == "critic_best_of_k" and not s.admissible_only,
            "strategy = 'critic_best_of_k' and admissible_only = false: nothing else asks a critic, and an expression holds from "
            "a response's first token on",
        ),
    ] = Field(0, ge=0, le=64)
    """Times that the tail of the response chosen is sampled again, and taken if the critic values it more."""
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

    @property
    def by_agents(self) -> bool:
        """Whether agents of the user play the episodes, in sessions."""
        return self.played_by == "sessions"


def _known_controller(name: str) -> str:
    try:
        find_controller(name)
    except ConfigError as error:
        raise ValueError(error.detail.removeprefix("controller: ")) from None
    return name


ControllerName = Annotated[str, AfterValidator(_known_controller)]


class LadderSection(Section, LadderRule):
    """The ladder's windows of difficulty levels, one a kind of environment where the family has several."""

    options: Params = Field(default_factory=dict)
    """Options of the family's generator that all levels have in common."""


class AdaptationSection(Section):
    """How tasks change."""

    controller: ControllerName = "llm_rewrite"
    """`llm_rewrite`, `ladder`, `none` (every task stays as it is), or a method with a controller, by its name or path."""
    original_share: Share = 0.0
    """Share of the pool's slots that keep their original tasks."""
    max_pending: int = Field(2, ge=0)
    """Proposals measured at the same time."""
    pairs_on_top: bool = True
    """Play the pairs that measure proposals beside `run.groups_per_step` groups, instead of in place of two of them each."""
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
    def chosen(self) -> Controller:
        """The controller that `controller` names."""
        return find_controller(self.controller)

    @property
    def method(self) -> Method | None:
        """The method that the controller belongs to; None for a controller of the core."""
        return None if self.controller in CONTROLLERS else find(self.controller)

    @property
    def adapts(self) -> bool:
        """Whether tasks change."""
        return bool(self.chosen.part)

    @model_validator(mode="after")
    def _reads_its_ladder(self) -> AdaptationSection:
        if self.ladder != LadderSection() and not self.chosen.needs_levels:
            raise ValueError(
                f"ladder: given with controller = {self.controller!r}, allowed only with 'ladder': no other controller has "
                "difficulty levels"
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
