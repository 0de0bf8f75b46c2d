"""What rollout and judge workers receive and send: tasks, groups, trajectories, votes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.config import ContrastSection, EnvAdapterSection, RewardSection, Sampling
from triforge.config.base import Params, Purpose, Split, TaskState, TrainedRole
from triforge.types.base import ErrorInfo, Extra, Message
from triforge.types.policy import ImageRef, PlacedImage, VersionSpan


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
    """Which model plays or judges an agent, and how it is sampled. Part of `GroupTask` and `JudgeTask`."""

    model: TrainedRole
    sampling: Sampling


class GroupTask(Message):
    """Play K episodes of one task version. Produced by: orchestrator. Consumed by: rollout workers (queue `rollout`).

    `votes` is m, the judge's samples: votes a step, or with `reward.kind` "unit_tests" tests a group; 0 plays without
    judging. `env_adapter` says how episodes are played, `reward` how they are judged. `agents` are those of the environment
    that other models than the policy play; the policy plays all others with `sampling`. `judges` judge the steps of these agents, with `judge_sampling` the reward model those of all others.
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
    env_adapter: EnvAdapterSection = EnvAdapterSection()
    reward: RewardSection = RewardSection()
    show_reference: bool = False
    extra: Extra = Field(default_factory=dict)

    def player(self, agent_id: str) -> Player:
        """Who plays an agent."""
        return self.agents.get(agent_id) or Player(model="policy", sampling=self.sampling)

    def judge(self, agent_id: str) -> TrainedRole:
        """The model that judges an agent's steps."""
        return self.judges[agent_id].model if agent_id in self.judges else "reward"


class Outcome(Message):
    """What the environment measured. An unmeasured outcome is not a zero: `value` and `score` are None and `error` says why.

    `value` is +1 where the episode is a success, else -1; it is None beside a score for which nobody stated a threshold.
    `score` is there where the environment gives scores or rewards.
    `share` is that of its hidden tests which were passed, where the environment counts them. `metrics` are measures of an agent's
    own (`SessionReward.metrics`); nothing is trained on them.
    """

    value: Literal[-1, 1] | None
    error: ErrorInfo | None = None
    share: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    metrics: dict[str, float] = Field(default_factory=dict)

    @property
    def passed(self) -> float | None:
        """The share of hidden tests that were passed; all or none where nobody counted, None where nothing was measured."""
        if self.value is None:
            return None
        return float(self.value == 1) if self.share is None else self.share


class Step(Message):
    """One observation, response and action.

    The response tokens are `segments[segment].ids[start:end]` of the trajectory. `label` is the environment's own view
    of the step (+1/-1), used only to measure judges, never for training. `reward` is what the step earned, where the
    environment rewards steps. `images` were seen with `observation`, `next_images` with `next_observation`. `admissible` are the commands
    that the environment would have taken, where it says so. `agent_id` says which agent answered, where an environment has
    several; a segment is one agent's.

    In tree rollouts step i of the K trajectories of a group are candidates for one turn: `state` names what was played before
    it, `chosen` the candidate that was played on, and `reward` is what the candidate was compared by. `readings` are
    numbers of the state that followed, `considered` the responses that a critic chose from.
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
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    images: tuple[ImageRef, ...] = ()
    next_images: tuple[ImageRef, ...] = ()
    admissible: tuple[str, ...] = ()
    state: str = ""
    chosen: bool = True
    readings: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    considered: tuple[str, ...] = ()


class Segment(Message):
    """A run of tokens the policy saw or produced, never tokenised twice.

    `ids` and `logprobs` are aligned; `logprobs` is 0.0 where a token was not sampled. `versions` cover the sampled
    tokens. `images` are those among `ids`, in order.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    images: tuple[PlacedImage, ...] = ()


class Trajectory(Message):
    """One rollout. Produced by: rollout worker. Consumed by: judge worker, orchestrator.

    `reference` is a solution of the task, where the judge is to see one (`GroupTask.show_reference`) and the family knows one.
    It took `seconds`, until `at` by the clock of the process `worker`; 0 where nobody says.
    """

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
    seconds: float = 0.0
    at: float = 0.0
    worker: str = ""
    reference: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether the environment said how it ended; only such trajectories are judged, counted and trained on."""
        return self.score is not None

    @property
    def score(self) -> float | None:
        """The environment's score, 1 or 0 of success where it gives none; None where nothing was measured."""
        value, score = self.outcome.value, self.outcome.score
        return score if score is not None or value is None else float(value == 1)


class JudgeTask(Message):
    """Score every step of one trajectory, m times. Produced by: rollout worker. Consumed by: judge (queue `judge`).

    `scorer` is the group's `reward.kind`, `accuracy` that of an oracle, `contrast` the goals of `vlm_contrast`. `judges` judge the
    steps of these agents, the reward model those of all others.
    """

    trajectory_id: str
    group_id: str
    run_id: str
    votes: Annotated[int, Field(ge=1, le=64)]
    seed: int
    sampling: Sampling
    deadline_s: Annotated[float, Field(gt=0)]
    prompt: Literal["rubric", "terse"] = "rubric"
    scorer: str = "votes"
    accuracy: Annotated[float, Field(ge=0, le=1)] = 1.0
    contrast: ContrastSection = ContrastSection()
    judges: dict[str, Player] = Field(default_factory=dict)
    extra: Extra = Field(default_factory=dict)

    def judge(self, agent_id: str) -> Player:
        """Who judges an agent's steps."""
        return self.judges.get(agent_id) or Player(model="reward", sampling=self.sampling)


class Vote(Message):
    """One sampled judgement: +1, -1, or 0 when the text could not be parsed."""

    value: Literal[-1, 0, 1]
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: Literal["stop", "length", "abort"] = "stop"


class StepVotes(Message):
    """The m votes on one step; all share `prompt_ids` and the `images` in them.

    `score` stands for the mean vote, of a scorer that casts no votes; `score_version` is that of the model that gave it.
    `extra["privileged"]` holds the values of m votes that the same judge cast with the trajectory's reference in its prompt.
    """

    step: int
    prompt_ids: tuple[int, ...]
    votes: tuple[Vote, ...]
    images: tuple[PlacedImage, ...] = ()
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    score_version: int | None = None
    extra: Extra = Field(default_factory=dict)


class TrajectoryVotes(Message):
    """Produced by: judge worker. Consumed by: orchestrator. `error` is set when the judge could not answer; `at`: see Trajectory."""

    trajectory_id: str
    group_id: str
    steps: tuple[StepVotes, ...]
    error: ErrorInfo | None = None
    seconds: float = 0.0
    at: float = 0.0
    worker: str = ""


class ProgramLimits(Message):
    """What one run of a task's programs may use: seconds of processor time, seconds by the clock, bytes of memory."""

    cpu_s: Annotated[float, Field(ge=0.01)]
    wall_s: Annotated[float, Field(ge=0.01)]
    memory_bytes: Annotated[int, Field(ge=2**26)]


class TrajectoryGroup(Message):
    """The K rollouts of one task version. Produced by: rollout worker. Consumed by: reward, orchestrator.

    `programs` is there where tests are wanted and the last action of a trajectory, if it is valid, is a program that reads
    standard input and writes standard output: the limits under which it runs on such a test.
    """

    group: GroupTask
    task: Task
    trajectories: tuple[Trajectory, ...]
    seconds: float = 0.0
    programs: ProgramLimits | None = None


class UnitTestTask(Message):
    """Write tests for the problem of a played group, and run its programs on them.

    Produced by: rollout worker. Consumed by: judge (queue `judge`). `tests` is how many are sampled.
    """

    group_id: str
    run_id: str
    tests: Annotated[int, Field(ge=1, le=64)]
    seed: int
    sampling: Sampling
    deadline_s: Annotated[float, Field(gt=0)]


class UnitTest(Message):
    """One sampled test. `input` and `output` are None when the text could not be parsed; then nothing was run.

    `accepts[j]` says whether the j-th program of the group's tests passed it.
    """

    input: str | None
    output: str | None
    accepts: tuple[bool, ...]
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: Literal["stop", "length", "abort"] = "stop"


class GroupTests(Message):
    """The tests written for one group; all share `prompt_ids`. Produced by: judge worker. Consumed by: orchestrator.

    `programs` are the ids of the measured trajectories, in the order of `UnitTest.accepts`. `error` is set when the tests
    could not be written or not be run; there are none then, for a sandbox that fails is no verdict.
    """

    group_id: str
    programs: tuple[str, ...]
    prompt_ids: tuple[int, ...]
    tests: tuple[UnitTest, ...]
    error: ErrorInfo | None = None
    seconds: float = 0.0
    at: float = 0.0
    worker: str = ""


class JudgedGroup(Message):
    """A played group with its votes, aligned with `played.trajectories` (None where judging was not asked or failed).

    With `reward.kind` "unit_tests" there are no votes, but `tests` (None where the task has no programs or nothing was
    measured). Produced by: reward (stream `judged`). Consumed by: orchestrator.
    """

    played: TrajectoryGroup
    votes: tuple[TrajectoryVotes | None, ...]
    tests: GroupTests | None = None
