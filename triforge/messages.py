"""Every type that crosses a process border, in the order in which the data flows round the ring.

Each message names its producer and consumer and carries one worked example (`EXAMPLES`, the golden JSON of the
contract tests). Messages are frozen and refuse unknown fields. Spans are half open `[start, end)`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Role = Literal["acts", "judges", "rewrites"]
TrainedRole = Literal["acts", "judges"]
Purpose = Literal["train", "measure_parent", "measure_candidate", "evaluate"]
Direction = Literal["harder", "easier"]
TaskState = Literal["active", "pending", "accepted", "rejected", "replaced", "paused", "retired"]
Split = Literal["train", "heldout"]
Params = dict[str, JsonValue]


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class ErrorInfo(Message):
    """A failure as data. Produced by: every room. Consumed by: conductor, people."""

    kind: str
    detail: str
    retryable: bool = False


# ---- text and tokens -------------------------------------------------------------------------------------------


class ChatMessage(Message):
    """One chat message. Produced by: environments, prompts. Consumed by: policy room."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(Message):
    """How to sample. Produced by: conductor (from the config). Consumed by: engines.

    `temperature` 0 is greedy. `stop` are strings, cut off from the text but kept in the ids.
    """

    max_new_tokens: Annotated[int, Field(ge=1, le=131072)] = 128
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None


class VersionSpan(Message):
    """Tokens [start, end) of an output were sampled with this weight version."""

    version: int
    start: int
    end: int


class GenerateRequest(Message):
    """One prompt, n samples. Produced by: rollout, judge, rewriter. Consumed by: policy room.

    `prefix_ids` are echoed exactly as they came back last time; only `messages` are rendered and appended.
    """

    prefix_ids: tuple[int, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    n: Annotated[int, Field(ge=1, le=64)] = 1
    sampling: Sampling = Sampling()
    affinity: str = ""


class GenerateOutput(Message):
    """One sample. `ids` and `logprobs` have the same length; `logprobs` are those of the sampled distribution at the
    request's temperature over the full softmax. `finish` is why the sample ended.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: Literal["stop", "length", "abort"]


class GenerateReply(Message):
    """Produced by: policy room. Consumed by: whoever asked. `prompt_ids` is the whole prompt, prefix included."""

    prompt_ids: tuple[int, ...]
    outputs: tuple[GenerateOutput, ...]
    cached_tokens: int = 0


# ---- tasks -----------------------------------------------------------------------------------------------------


class Task(Message):
    """One problem, with a version and a parent. Produced by: env_adapter. Consumed by: rollout workers, people.

    `id` names this version; `slot` is the id of the root all its versions descend from. `params` belong to the family.
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


class PlannedGroup(Message):
    """One group of a step's plan. Produced by: env_adapter's store. Consumed by: conductor."""

    task_id: str
    slot: str
    purpose: Purpose
    proposal_id: str | None = None


class GroupTask(Message):
    """Play K episodes of one task version. Produced by: conductor. Consumed by: rollout workers (queue `rollout`).

    `votes` is m, the judge's samples a step; 0 plays without judging. `greedy` adds nothing but temperature 0.
    """

    group_id: str
    run_id: str
    step: int
    task_id: str
    purpose: Purpose
    rollouts: Annotated[int, Field(ge=1, le=256)]
    votes: Annotated[int, Field(ge=0, le=64)] = 0
    seed: int
    sampling: Sampling
    judge_sampling: Sampling = Sampling()
    max_steps: Annotated[int, Field(ge=1)]
    deadline_s: Annotated[float, Field(gt=0)]
    proposal_id: str | None = None


# ---- trajectories ----------------------------------------------------------------------------------------------


class Outcome(Message):
    """What the environment measured. An unmeasured outcome is not a zero: `value` is None and `error` says why."""

    value: Literal[-1, 1] | None
    error: ErrorInfo | None = None


class Step(Message):
    """One observation, response and action.

    The response tokens are `segments[segment].ids[start:end]` of the trajectory. `label` is the environment's own view
    of the step (+1/-1), used only to measure judges, never for training.
    """

    index: int
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


class Segment(Message):
    """A run of tokens the policy saw or produced, never tokenised twice. `ids` and `logprobs` are aligned;
    `logprobs` is 0.0 where a token was not sampled. `versions` cover the sampled tokens.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]


class Trajectory(Message):
    """One rollout. Produced by: rollout worker. Consumed by: judge worker, conductor."""

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


class JudgeTask(Message):
    """Vote m times on every step of one trajectory. Produced by: rollout worker. Consumed by: judge (queue `judge`)."""

    trajectory_id: str
    group_id: str
    run_id: str
    votes: Annotated[int, Field(ge=1, le=64)]
    seed: int
    sampling: Sampling
    deadline_s: Annotated[float, Field(gt=0)]


class Vote(Message):
    """One sampled judgement: +1, -1, or 0 when the text could not be parsed."""

    value: Literal[-1, 0, 1]
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: Literal["stop", "length", "abort"] = "stop"


class StepVotes(Message):
    """The m votes on one step; all share `prompt_ids`."""

    step: int
    prompt_ids: tuple[int, ...]
    votes: tuple[Vote, ...]


class TrajectoryVotes(Message):
    """Produced by: judge worker. Consumed by: conductor. `error` is set when the judge could not answer."""

    trajectory_id: str
    group_id: str
    steps: tuple[StepVotes, ...]
    error: ErrorInfo | None = None
    seconds: float = 0.0


class TrajectoryGroup(Message):
    """The K rollouts of one task version. Produced by: rollout worker. Consumed by: reward, conductor."""

    group: GroupTask
    task: Task
    trajectories: tuple[Trajectory, ...]
    seconds: float = 0.0


class JudgedGroup(Message):
    """A played group with its votes, aligned with `played.trajectories` (None where judging was not asked or failed).

    Produced by: reward (stream `judged`). Consumed by: conductor.
    """

    played: TrajectoryGroup
    votes: tuple[TrajectoryVotes | None, ...]


# ---- adaptation ------------------------------------------------------------------------------------------------


class CriticNote(Message):
    """What one trajectory looked like to the judge; input of the critic. `steps` are (action, observation, votes)."""

    trajectory_id: str
    success: bool
    steps: tuple[tuple[str, str, tuple[int, ...]], ...]
    judge_texts: tuple[str, ...] = ()


class TaskOutcome(Message):
    """How a group went. Produced by: conductor. Consumed by: env_adapter (queue `adapt`).

    Only measured rollouts count: `successes <= measured <= rollouts`. `policy_version` is what they were sampled with.
    """

    group_id: str
    run_id: str
    step: int
    pool_id: str
    task_id: str
    purpose: Purpose
    proposal_id: str | None = None
    successes: int
    measured: int
    rollouts: int
    policy_version: int
    notes: tuple[CriticNote, ...] = ()
    adapt: bool = True


class CheckResult(Message):
    """One check of a proposal before it is measured."""

    name: str
    passed: bool
    detail: str = ""


class Proposal(Message):
    """A rewrite and everything said about it. Produced by: adapt worker. Consumed by: store, people.

    `parent_counts` and `candidate_counts` are (successes, measured) a paired group, oldest first.
    """

    id: str
    pool_id: str
    slot: str
    parent_id: str
    candidate_id: str | None
    direction: Direction
    state: Literal["pending", "accepted", "rejected", "invalid", "rolled_back"]
    run_id: str
    step: int
    trigger_accuracy: float
    critic: str
    prompt: str
    answer: str
    instruction_before: str
    instruction_after: str = ""
    checks: tuple[CheckResult, ...] = ()
    parent_counts: tuple[tuple[int, int], ...] = ()
    candidate_counts: tuple[tuple[int, int], ...] = ()
    reason: str = ""


# ---- training --------------------------------------------------------------------------------------------------


class TrainRow(Message):
    """One sequence to train on. All token fields are aligned with `ids`; a token with weight 0 is context only.

    `weights` say how much a token counts in the loss (they sum to about 1 over the batch), `advantages` its advantage,
    `logprobs` the behaviour log-probability.
    """

    key: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    version: int
    task_id: str


class TrainBatch(Message):
    """Everything a learner needs for one step of one role. Produced by: conductor (stream `batches`, rows in the artifact
    store at `uri`). Consumed by: learner.
    """

    batch_id: str
    run_id: str
    role: TrainedRole
    step: int
    version: int
    uri: str
    num_rows: int
    num_tokens: int
    settings: Params


class StepReport(Message):
    """What one training step did. Produced by: learner. Consumed by: conductor, people. Metrics are flat numbers."""

    run_id: str
    role: TrainedRole
    step: int
    metrics: dict[str, float]


class WeightsReady(Message):
    """A published weight version. Produced by: learner (stream `weights`). Consumed by: conductor, policy room.

    `digest` is the SHA-256 of the folder's manifest.
    """

    run_id: str
    role: TrainedRole
    step: int
    version: int
    uri: str
    digest: str
    report: StepReport | None = None
    error: ErrorInfo | None = None


class WeightsUpdate(Message):
    """Serve these weights. Produced by: conductor. Consumed by: policy room (`POST /v1/weights`)."""

    version: Annotated[int, Field(ge=0)]
    uri: str
    digest: str = ""


class WeightsState(Message):
    """What the policy room serves. Produced by: policy room (`GET /v1/weights`)."""

    role: Role
    version: int
    uri: str
    engines: int
    ready: int


# ---- runs ------------------------------------------------------------------------------------------------------


class Event(Message):
    """Something happened. Produced by: every room (stream `events`). Consumed by: people, dashboards."""

    kind: str
    run_id: str = ""
    step: int | None = None
    at: float
    data: dict[str, Any] = Field(default_factory=dict)


class RunState(Message):
    """A run as the API shows it. Produced by: trainer. Consumed by: people."""

    id: str
    name: str
    pool_id: str
    status: Literal["queued", "running", "stopping", "stopped", "finished", "failed"]
    step: int
    steps: int
    policy_version: int
    reward_version: int
    created_at: float
    updated_at: float
    reason: str = ""
    config: dict[str, Any] = Field(default_factory=dict)


class RunStep(Message):
    """One finished step of a run. Produced by: trainer (`GET /v1/runs/{id}/steps`)."""

    run_id: str
    step: int
    at: float
    policy_version: int
    reward_version: int
    metrics: dict[str, float]
    artifacts: dict[str, str] = Field(default_factory=dict)
