"""The protocols that rollout, judging and adaptation depend on; a program's wiring chooses the implementations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from triforge.types import (
    CheckResult,
    Direction,
    GenerateReply,
    GenerateRequest,
    GroupJudgement,
    ImageRef,
    JudgeTask,
    Params,
    ProgramLimits,
    Task,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
)


class Generate(Protocol):
    """A function that samples: a policy service, a fake, an engine in the same process."""

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample; raise PolicyError if the engine refused or failed, UnavailableError if it does not answer."""


GenerateMany = Callable[[Sequence[GenerateRequest]], Awaitable[Sequence[GenerateReply]]]
"""A function that samples several requests and returns the replies in their order."""


@runtime_checkable
class StepScorer(Protocol):
    """Scores the steps of a trajectory. `reward.kind` names one of `services.reward.scorers`, or a path `package.module:function`."""

    async def __call__(
        self, trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
    ) -> TrajectoryVotes:
        """Score every step; a step that cannot be scored has no votes.

        `task` has the number of votes, the seed and the sampling; `generate_many` samples from the reward model, which a
        scorer may ignore. After a TriforgeError the trajectory counts as not judged.
        """


class GroupScorer(Protocol):
    """Judges a played group as a whole. Each of its two phases has the deadline of the job and is tried again."""

    async def ask(
        self, generate_many: GenerateMany, task: JudgeTask, played: TrajectoryGroup
    ) -> Any:
        """Sample the texts of the judge; the result goes to `judge`."""

    async def judge(self, sandbox: Any, played: TrajectoryGroup, reply: Any) -> GroupJudgement:
        """Evaluate the texts; `sandbox` is a `triforge.sandbox.client.Sandbox`, or None where programs cannot run."""


class KeepImage(Protocol):
    """A store of screenshots."""

    async def __call__(self, data: bytes) -> ImageRef:
        """Store a PNG or JPEG file; raise InputError if it is none or too large, StorageError if the store is away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The next observation of the agent: the text of one user message, and the commands that are admissible now.

    `images` are screenshots as PNG or JPEG files, which the model sees in this order before the text. The rollout worker
    stores them by content hash and passes references on. `agent_id` names the agent that answers next, where an
    environment has several; each has its own conversation.
    """

    text: str
    admissible: tuple[str, ...] = ()
    images: tuple[bytes, ...] = ()
    agent_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reset:
    """The start of an episode: an optional system message and the first observation, which includes the instruction."""

    observation: Observation
    system: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The result of one response.

    `action` is the action that was parsed from the response, `action_valid` whether it was admissible. `success` is read
    only when `done`, and so is `share`, the share of hidden tests that was passed, if the environment counts them. `label`
    is the environment's own judgement of the step (+1 useful, -1 not), to measure judges only.

    `reward` is that of the step. `score` is that of the whole episode, given only when `done`; both are numbers from -1e12 to
    1e12 (`triforge.types.LARGEST`). Without a score it is the sum of the rewards, and without rewards success as 1 or 0. If
    `success` is None, the threshold of the run or the family decides it; without a threshold the success of the episode is unknown.

    `local` is the value of the step for the agent that took it. It is no part of the score; tree rollouts read it.

    `readings` are numbers of the next state (a speed, a distance), which step scorers may read by name.
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
        """Play the policy's whole response; the environment parses its own action format.

        Raise EnvError if the episode is over or was never started, or the environment failed.
        """

    async def close(self) -> None:
        """Free everything. Idempotent."""


@runtime_checkable
class Forks(Protocol):
    """An `Environment` that can be copied between two steps; a copy of another replays its responses."""

    async def fork(self) -> Environment | None:
        """Return a second environment in the same state, with its own episode; None if it cannot be copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDraft:
    """A task before it is stored: normalised parameters and the instruction that follows from them.

    `kind` is the family's name for tasks of this sort, of at most 64 characters.
    """

    params: Params
    instruction: str
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewriteMenu:
    """The choices of a rewriter: the facts of the task and the closed lists of valid answers.

    `fields` maps a field name to its allowed values, in the order of the answer. Families with open answers use
    `json_schema` instead. `combinations` lists the joint choices that pass the family's own rules, if they can be listed;
    the constrained decoder then cannot produce an invalid one.
    """

    description: str
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    combinations: tuple[dict[str, str], ...] = ()
    json_schema: str | None = None


@runtime_checkable
class EnvironmentFamily(Protocol):
    """A kind of environment, which authors implement and `triforge.testing.check_environment` checks.

    Each episode has its own thread, so an episode that blocks cannot stop the others. Optional attributes:

    `never_blocks = True`  environments return at once from every call; their episodes share one event loop
    `success_at`           episodes have scores and no success; this score and above is a success, unless the run's option of
                           that name is set; None sets no threshold
    `asks(draft, options)` what a task asks, as text; tasks with equal texts are never in two splits (all parameters by default)
    `criteria(task, options)` the task's rubric and reference as a `Criteria`, for judges (by default `gold` is the reference)
    `activity()`           what all environments wait for just now, to be shown where it takes long; empty for nothing
    `labels_steps = True`  environments label every step, so `reward.kind = "oracle"` can score them
    """

    name: str

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a task's parameters and write its instruction; raise an InputError that names a wrong field."""

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Make `count` solvable tasks. Same seed and options, same tasks; raise InputError if an option is impossible."""

    def make(self, options: Params) -> Environment:
        """Make a fresh environment; `options` are the run's (wording, action format)."""

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """Return responses that solve the task, if the family can find them."""

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """Return the changes that a rewrite of this task may choose."""

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """Make the candidate of an answer, with a new instruction for the new goal.

        Raise InputError if the answer names an unknown value or an impossible combination.
        """

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """Prove: differs from the parent, not satisfied at reset, solvable, instruction and verifier agree."""


@runtime_checkable
class ProgramFamily(Protocol):
    """An `EnvironmentFamily` whose actions are programs: they can run on other inputs than the task's own."""

    def program_limits(self, task: Task) -> ProgramLimits | None:
        """Return the limits of one run of a program; None for a task whose programs have no input and output."""
