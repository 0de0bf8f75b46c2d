"""Messages of rollout and judge workers: tasks, groups, trajectories, votes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.config import EnvAdapterSection, RewardSection, Sampling
from triforge.config.base import Params, Purpose, Split, TaskState, TrainedRole
from triforge.types.base import ErrorInfo, Extra, Message
from triforge.types.numbers import Reported
from triforge.types.policy import GenerateOutput, ImageRef, PlacedImage, VersionSpan

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Work(Message):
    """The result of a worker's job: it took `seconds`, until `at` by the clock of the process `worker`; 0 where unknown."""

    seconds: float = 0.0
    at: float = 0.0
    worker: str = ""


class Task(Message):
    """One problem, with a version and a parent. Produced by: env_adapter. Consumed by: rollout workers, people.

    `id` names this version; `slot` is the id of the root all its versions descend from. `params` belong to the family,
    `kind` is its word for tasks of this sort. A `pinned` slot is never rewritten.
    """

    id: str
    pool_id: str
    slot: str
    version: Annotated[int, Field(ge=0)] = 0
    parent_id: str | None = None
    family: str
    split: Split = "train"
    state: TaskState = "active"
    instruction: str
    params: Params = Field(default_factory=dict)
    kind: str = ""
    pinned: bool = False


class PlannedGroup(Message):
    """One group of a step's plan. Produced by: env_adapter's store. Consumed by: orchestrator."""

    task_id: str
    slot: str
    purpose: Purpose
    proposal_id: str | None = None


class Player(Message):
    """The model that plays or judges an agent, with its sampling. Part of `GroupTask` and `JudgeTask`."""

    model: TrainedRole
    sampling: Sampling


class GroupTask(Message):
    """A job: K episodes of one task version. Produced by: orchestrator. Consumed by: rollout workers (queue `rollout`).

    `votes` is m, the judge's samples: votes a step, or texts a group if the scorer judges groups as a whole; 0 plays without
    judging. `env_adapter` has the options of playing, `reward` those of judging. `agents` are those of the environment that other
    models play; the policy plays all others with `sampling`. `judges` judge the steps of these agents; the reward model judges
    those of all others with `judge_sampling`. `oldest` is the oldest weight version of each model that may play or judge the group.
    """

    group_id: str
    run_id: str
    step: int
    task_id: str
    purpose: Purpose
    rollouts: Annotated[int, Field(ge=1, le=256)]
    votes: Annotated[int, Field(ge=0, le=64)] = 0
    seed: int
    proposal_id: str | None = None
    sampling: Sampling
    agents: dict[str, Player] = Field(default_factory=dict)
    judge_sampling: Sampling = Sampling()
    judges: dict[str, Player] = Field(default_factory=dict)
    oldest: dict[TrainedRole, int] = Field(default_factory=dict)
    env_adapter: EnvAdapterSection = EnvAdapterSection()
    reward: RewardSection = RewardSection()
    extra: Extra = Field(default_factory=dict)

    def player(self, agent_id: str) -> Player:
        """Return the player of an agent."""
        return self.agents.get(agent_id) or Player(model="policy", sampling=self.sampling)

    def judge(self, agent_id: str) -> TrainedRole:
        """Return the model that judges an agent's steps."""
        return self.judges[agent_id].model if agent_id in self.judges else "reward"


class Outcome(Message):
    """The outcome of an episode. An unmeasured outcome is not a zero: `value` and `score` are None and `error` is the cause.

    `value` is +1 where the episode is a success, else -1; it is None with a score that has no threshold of success. `score` is
    set where the environment gives scores or rewards, `share` (of the hidden tests that were passed) where it counts them.
    `metrics` are measures of an agent's own (`SessionReward.metrics`); nothing is trained on them.
    """

    value: Literal[-1, 1] | None
    error: ErrorInfo | None = None
    share: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    score: Finite | None = None
    metrics: dict[str, float] = Field(default_factory=dict)

    @property
    def passed(self) -> float | None:
        """The share of hidden tests that were passed; 1 or 0 without a count, None where nothing was measured."""
        if self.value is None:
            return None
        return float(self.value == 1) if self.share is None else self.share


class Step(Message):
    """One observation, response and action.

    The response tokens are `segments[segment].ids[start:end]` of the trajectory. `label` is the environment's own judgement
    of the step (+1/-1); it measures judges, and trains them with `judge_target = "label"` on the audited rollouts. `reward` is the step's own, where the environment
    rewards steps. `images` belong to `observation`, `next_images` to `next_observation`. `admissible` are the commands that the
    environment would have accepted, if it lists them. `agent_id` is the agent that answered, where an environment has several;
    a segment is one agent's.

    In tree rollouts the steps i of the K trajectories of a group are candidates for one turn: `state` names the turns before it,
    `chosen` marks the candidate that the rollout continued with, and candidates are compared by `reward`. `readings` are numbers
    of the state that followed, `extra` the fields of methods.
    """

    index: int
    agent_id: str = ""
    observation: str
    response: str
    action: str
    action_valid: bool = True
    next_observation: str
    segment: int = 0
    start: int
    end: int
    finish: Literal["stop", "length", "abort"] = "stop"
    label: Literal[-1, 1] | None = None
    reward: Finite | None = None
    images: tuple[ImageRef, ...] = ()
    next_images: tuple[ImageRef, ...] = ()
    admissible: tuple[str, ...] = ()
    state: str = ""
    chosen: bool = True
    readings: dict[str, Finite] = Field(default_factory=dict)
    extra: Extra = Field(default_factory=dict)


class Segment(Message):
    """A sequence of prompt and response tokens, never tokenised twice.

    `ids` and `logprobs` are aligned; `logprobs` is 0.0 where a token was not sampled. `versions` cover the sampled
    tokens. `images` are those among `ids`, in order.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    images: tuple[PlacedImage, ...] = ()


class Trajectory(_Work):
    """One rollout. Produced by: rollout worker. Consumed by: judge worker, orchestrator."""

    id: str
    group_id: str
    index: int
    task_id: str
    task_version: int
    instruction: str
    system: str = ""
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    outcome: Outcome
    retries: int = 0

    @property
    def measured(self) -> bool:
        """Whether the outcome was measured; only such trajectories are judged, counted and trained on."""
        return self.score is not None

    @property
    def score(self) -> float | None:
        """The environment's score, 1 or 0 of success where it gives none; None where nothing was measured."""
        value, score = self.outcome.value, self.outcome.score
        return score if score is not None or value is None else float(value == 1)


class JudgeTask(Message):
    """A job: m votes on every step of one trajectory, or with an empty `trajectory_id` m texts on the whole group.

    Produced by: rollout worker. Consumed by: judge (queue `judge`). `scorer` is the group's `reward.kind`, `accuracy` and `errors` those of an oracle, `extra` the group's. `judges` judge the steps of these
    agents, the reward model those of all others.
    """

    trajectory_id: str = ""
    group_id: str
    run_id: str
    votes: Annotated[int, Field(ge=1, le=64)]
    seed: int
    sampling: Sampling
    deadline_s: Annotated[float, Field(gt=0)]
    prompt: Literal["rubric", "terse"] = "rubric"
    scorer: str = "votes"
    accuracy: Annotated[float, Field(ge=0, le=1)] = 1.0
    errors: Literal["lot", "repeat"] = "lot"
    judges: dict[str, Player] = Field(default_factory=dict)
    extra: Extra = Field(default_factory=dict)

    def judge(self, agent_id: str) -> Player:
        """Return the judge of an agent's steps."""
        return self.judges.get(agent_id) or Player(model="reward", sampling=self.sampling)


class Vote(GenerateOutput):
    """One sampled judgement: +1, -1, or 0 when the text could not be parsed."""

    value: Literal[-1, 0, 1]


class StepVotes(Message):
    """The m votes on one step; all share `prompt_ids` and the `images` in them.

    `score` stands for the mean vote, of a scorer that casts no votes; `score_version` is that of the model that gave it.
    `extra` has further judgements of the step, which a judge target may read.
    """

    step: int
    prompt_ids: tuple[int, ...]
    votes: tuple[Vote, ...]
    images: tuple[PlacedImage, ...] = ()
    score: Reported | None = None
    score_version: int | None = None
    extra: Extra = Field(default_factory=dict)


class TrajectoryVotes(_Work):
    """The votes on a trajectory. Produced by: judge worker. Consumed by: orchestrator. `error` is set when the judge failed."""

    trajectory_id: str
    group_id: str
    steps: tuple[StepVotes, ...]
    error: ErrorInfo | None = None


class ProgramLimits(Message):
    """The limits of one run of a task's programs: seconds of processor time, seconds by the clock, bytes of memory."""

    cpu_s: Annotated[float, Field(ge=0.01)]
    wall_s: Annotated[float, Field(ge=0.01)]
    memory_bytes: Annotated[int, Field(ge=2**26)]


class TrajectoryGroup(Message):
    """The K rollouts of one task version. Produced by: rollout worker. Consumed by: reward, orchestrator.

    `programs` is set where the scorer needs programs and a valid last action is a program that reads standard input and writes standard
    output: its limits on such a test.
    """

    group: GroupTask
    task: Task
    trajectories: tuple[Trajectory, ...]
    seconds: float = 0.0
    programs: ProgramLimits | None = None


class JudgeText(GenerateOutput):
    """One text that the judge wrote on a group as a whole; `extra` holds the fields of the method that reads it."""

    extra: Extra = Field(default_factory=dict)


class GroupJudgement(_Work):
    """The judge's texts on a group as a whole; all share `prompt_ids`. Produced by: judge worker. Consumed by: orchestrator.

    `error` is set, and there are no texts, when judging failed: a sandbox that fails is no verdict.
    """

    group_id: str
    prompt_ids: tuple[int, ...]
    texts: tuple[JudgeText, ...]
    extra: Extra = Field(default_factory=dict)
    error: ErrorInfo | None = None


class JudgedGroup(Message):
    """A played group with its votes, aligned with `played.trajectories` (None where judging was not wanted or failed).

    If the scorer judges groups as a whole, there are no votes, but a `judgement` (None where there was nothing to judge).
    Produced by: reward (stream `judged`). Consumed by: orchestrator.
    """

    played: TrajectoryGroup
    votes: tuple[TrajectoryVotes | None, ...]
    judgement: GroupJudgement | None = None
