"""The shapes that rollout, judging and adaptation depend on. Whoever wires a program decides what stands behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from triforge.types import (
    CheckResult,
    Direction,
    GenerateReply,
    GenerateRequest,
    ImageRef,
    JudgeTask,
    Params,
    ProgramLimits,
    Task,
    Trajectory,
    TrajectoryVotes,
)


class Generate(Protocol):
    """Anything that samples: a policy service, a fake, an engine in process."""

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample; a PolicyError if the engine refused or failed, an UnavailableError if nothing answers now."""


GenerateMany = Callable[[Sequence[GenerateRequest]], Awaitable[Sequence[GenerateReply]]]
"""Samples several requests and answers in their order."""


@runtime_checkable
class StepScorer(Protocol):
    """Scores the steps of a trajectory. `reward.kind` names one of `services.reward.scorers`, or a path `package.module:function`."""

    async def __call__(
        self, trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
    ) -> TrajectoryVotes:
        """Score every step; one that cannot be scored has no votes, and none is guessed.

        `task` says how many votes, from which seed, sampled how; `generate_many` asks the reward model, which a scorer need
        not do. After a TriforgeError the trajectory counts as not judged.
        """


class KeepImage(Protocol):
    """Anything that keeps screenshots and says how they are referred to."""

    async def __call__(self, data: bytes) -> ImageRef:
        """Keep a PNG or JPEG file; an InputError if it is none or too large, a StorageError if it cannot be kept now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What the agent sees next: the text of one user message, and the commands that would be admissible now.

    `images` are screenshots as PNG or JPEG files, in the order in which the model is to see them, before the text. They
    go to the artifact store by content hash; everything behind the rollout worker knows them by reference. `agent_id` says
    which agent is to answer, where an environment has several: each has a conversation of its own.
    """

    text: str
    admissible: tuple[str, ...] = ()
    images: tuple[bytes, ...] = ()
    agent_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reset:
    """Start of an episode: an optional system message and the first observation (instruction included)."""

    observation: Observation
    system: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one response led to.

    `action` is what was understood from the response, `action_valid` whether it was admissible. `success` matters only
    when `done`; so does `share`, the part of its hidden tests that was passed, where the environment counts them.
    `label` is the environment's own view of the step (+1 useful, -1 not), for measuring judges only.

    `reward` is what the step earned and `score` what the whole episode is worth, given only when `done`; both are finite. Without
    a score it is the sum of the rewards, and without rewards 1 or 0 of success. `success` None leaves success to the threshold
    that the run or the family states; where neither does, nobody knows which episodes succeed.

    `local` is what the step is worth for the agent that took it alone. It is no part of the score; tree rollouts read it.

    `readings` are numbers of the state that followed (a speed, a distance), which `reward.contrast` may read by name.
    """

    observation: Observation
    action: str
    action_valid: bool
    done: bool
    success: bool | None = None
    label: Literal[-1, 1] | None = None
    share: float | None = None
    reward: float | None = None
    score: float | None = None
    local: float | None = None
    readings: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """One episode. Single use: one instance, one `reset`, steps until done, `close` (may be called twice)."""

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Start the task. Same task and seed, same episode."""

    async def step(self, response: str) -> StepResult:
        """Play the policy's whole response (the environment parses its own action format).

        An EnvError says that the episode is over or was never started, or that the environment broke.
        """

    async def close(self) -> None:
        """Free everything. Idempotent."""


@runtime_checkable
class Forks(Protocol):
    """An `Environment` that can be copied between two steps; of any other a copy is made by playing its responses again."""

    async def fork(self) -> Environment | None:
        """A second environment in the same state, which is played and closed on its own; None where there can be none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDraft:
    """A task before it is stored: normalised parameters and the instruction that follows from them.

    `kind` is the family's word for tasks of this sort, at most 64 characters; people list tasks by it.
    """

    params: Params
    instruction: str
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewriteMenu:
    """What a rewriter may choose from: the question's facts and the closed lists of valid answers.

    `fields` maps a field name to its allowed values, in the order in which the answer is written. Families with open
    answers use `json_schema` instead. `combinations` lists the joint choices that pass the family's own rules, if they
    are enumerable; the constrained decoder then cannot produce an invalid one.
    """

    description: str
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    combinations: tuple[dict[str, str], ...] = ()
    json_schema: str | None = None


@runtime_checkable
class EnvironmentFamily(Protocol):
    """A kind of environment: what adapter authors implement and `triforge.testing.check_environment` walks.

    Each episode gets a thread of its own, so that one that blocks cannot stop the others. A family whose environments
    return at once from every call may have an attribute `never_blocks = True`; its episodes then share one event loop.
    One whose episodes have scores and no success has an attribute `success_at`: the score from which they are a success, unless
    the run's option of that name states another; None states none. One that labels every step says `labels_steps = True`;
    only its steps can be scored by `reward.kind = "oracle"`.
    """

    name: str

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a task's parameters and write its instruction; an InputError names what is wrong with a field."""

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Make `count` solvable tasks. Same seed and (difficulty) options, same tasks; an InputError if one is impossible."""

    def make(self, options: Params) -> Environment:
        """A fresh environment. `options` are the run's settings (wording, action format)."""

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """Responses that solve the task, if the family can find them."""

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """What a rewrite of this task may change."""

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """The candidate that follows from an answer, its instruction regenerated from the new goal.

        An InputError says that the answer names something that does not exist or cannot be combined.
        """

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """The family's own proofs: differs from the parent, not satisfied at reset, solvable, instruction and verifier agree."""


@runtime_checkable
class ProgramFamily(Protocol):
    """An `EnvironmentFamily` whose actions are programs: the reward model may write tests for them."""

    def program_limits(self, task: Task) -> ProgramLimits | None:
        """What one run of a program may use; None for a task whose programs are no input and output."""
