"""The sidecar: another trainer draws tasks, reports what its policy did, and gets votes and credit back."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, model_validator

from triforge.config.base import Direction, Params, ProposalState, Purpose
from triforge.types.base import Message
from triforge.types.numbers import Reported
from triforge.types.rollout import Task

MAX_DRAWN: Final = 1024  # tasks of one draw, and rollouts of one report
MAX_MESSAGES: Final = 1000  # of a rollout
Version = Annotated[int, Field(ge=0, le=10**12)]
PlaceId = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class TextMessage(Message):
    """A message of a conversation, as OpenAI's API writes it. Part of `DrawnTask` and `RolloutReport`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: Annotated[tuple[JsonValue, ...], Field(max_length=64)] = ()


class DrawRequest(Message):
    """A request for tasks. Produced by: trainers. Consumed by: env_adapter (`POST /v1/pools/{pool}/draw`)."""

    n: Annotated[int, Field(ge=1, le=MAX_DRAWN)] = 1


class DrawnTask(Message):
    """A task to play, once for each of `rollouts`: the ids under which the rollouts are reported. Part of `Draw`.

    All rollouts of a group are compared with each other; a task whose group was given back in part has fewer than the run's.
    `purpose` and `proposal_id` say what the group measures: a pair of them measures a rewrite. `options` are those of playing.
    """

    group_id: str
    purpose: Purpose
    proposal_id: str | None = None
    rollouts: tuple[str, ...]
    messages: tuple[TextMessage, ...]
    task: Task
    options: Params = Field(default_factory=dict)


class Draw(Message):
    """Drawn tasks. Produced by: env_adapter. Consumed by: trainers. Rollouts that are not reported within `left_s` go to others."""

    run_id: str
    left_s: float
    tasks: tuple[DrawnTask, ...]


class RolloutReport(Message):
    """The conversation of one rollout, and its measured result. Part of `Report`.

    `messages` are the whole conversation; each message of the assistant is a step, and the messages up to the next one are what
    followed. `rewards` are those of the steps, if there are any; the default score is their sum. With an `error` nothing was measured.
    """

    id: PlaceId
    messages: Annotated[tuple[TextMessage, ...], Field(max_length=MAX_MESSAGES)] = ()
    success: bool | None = None
    score: Reported | None = None
    rewards: Annotated[tuple[Reported, ...], Field(max_length=MAX_MESSAGES)] = ()
    truncated: bool = False
    error: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _possible(self) -> RolloutReport:
        steps = sum(message.role == "assistant" for message in self.messages)
        measured = self.success is not None or self.score is not None or bool(self.rewards)
        if bool(self.error) is measured:
            raise ValueError("expected a result (`success`, `score` or `rewards`) or an `error`")
        if measured and not steps:
            raise ValueError("messages: expected at least one of the assistant")
        if self.rewards and len(self.rewards) != steps:
            raise ValueError(
                f"rewards: given {len(self.rewards)}, expected one for each of the {steps} messages of the assistant"
            )
        return self


class Report(Message):
    """Rollouts of one policy version. Produced by: trainers. Consumed by: env_adapter (`POST /v1/pools/{pool}/rollouts`).

    `policy_version` is any number that rises with the weights of the policy. The answer waits up to `wait_s` for the judge. The
    same report again gets the answer again, also after a restart.
    """

    policy_version: Version
    rollouts: Annotated[tuple[RolloutReport, ...], Field(min_length=1, max_length=MAX_DRAWN)]
    wait_s: Annotated[float, Field(ge=0, le=60)] = 30.0


class StepCredit(Message):
    """The judgement and the credit of a step. Part of `RolloutCredit`. `reward` and `advantage` are None until its group is whole."""

    votes: tuple[int, ...] = ()
    score: float | None = None
    reward: float | None = None
    advantage: float | None = None


class RolloutCredit(Message):
    """The credit of a rollout. Part of `CreditReport` and `RolloutReply`.

    `reward` is the mean of those of its steps, which hold outcome and votes as the run's algorithm joins them; `reason` says why the
    loop would not train on it.
    """

    reward: float | None = None
    reason: str = ""
    steps: tuple[StepCredit, ...] = ()


class CreditReport(Message):
    """The credit of a group, its rollouts by index. Produced by: orchestrator. Consumed by: env_adapter.

    `judge_version` is the newest that voted. `direction` is that in which the task's rate of success asks for a rewrite.
    """

    group_id: str
    purpose: Purpose
    proposal_id: str | None = None
    successes: int
    measured: int
    judge_version: int | None = None
    direction: Direction | None = None
    rollouts: tuple[RolloutCredit, ...] = ()


class RolloutReply(Message):
    """The answer on a rollout. Part of `ReportReply`.

    `credited`: the credit is whole. `waiting`: for the judge, or for other rollouts of the group; votes may be there already.
    `replaced`: its group is played anew, for instance because the engines have lost their weights; nothing more comes.
    """

    id: str
    group_id: str
    state: Literal["credited", "waiting", "replaced"]
    credit: RolloutCredit = RolloutCredit()


class ReportReply(Message):
    """The answer on a report: its rollouts in their order, and the whole groups among them, without rollouts.

    Produced by: env_adapter. Consumed by: trainers. `complete` is false while a rollout waits (status 202): send the report again.
    """

    complete: bool
    rollouts: tuple[RolloutReply, ...]
    groups: tuple[CreditReport, ...] = ()


class ProposalSummary(Message):
    """A rewrite, shortened. Part of `Curriculum`; `GET /v1/proposals/{id}` has all of it."""

    id: str
    slot: str
    direction: Direction
    state: ProposalState
    step: int
    decided_step: int | None = None
    instruction_before: str
    instruction_after: str


class Curriculum(Message):
    """How the tasks of a pool fit the trainer's policy. Produced by: env_adapter. Consumed by: trainers.

    `band` counts the active training tasks by their last training group in the run: `inside` the band, `easy` above it, `hard` below it,
    `unmeasured`. `proposals` counts the run's rewrites by state, `newest` are the newest of them. `versions` are the newest of the
    policy, as the trainer has named them, and the reward model's.
    """

    pool_id: str
    run_id: str
    step: int
    band: dict[Literal["inside", "easy", "hard", "unmeasured"], int]
    proposals: dict[ProposalState, int] = Field(default_factory=dict)
    newest: tuple[ProposalSummary, ...] = ()
    versions: dict[str, int]
