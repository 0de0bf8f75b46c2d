"""What people and dashboards read and ask: runs, events, judgements of trajectories from outside."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from triforge.types.base import Message
from triforge.types.policy import ImageRef

RunStatus = Literal["queued", "running", "stopping", "stopped", "finished", "failed"]
ENDED: Final[tuple[RunStatus, ...]] = ("stopped", "finished", "failed")
"""Nobody works on such a run; what it has is all there, and it can be evaluated, rolled back or resumed if not finished."""


class Event(Message):
    """Something happened. Produced by: every service (stream `events`). Consumed by: people, dashboards."""

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
    status: RunStatus
    step: int
    steps: int
    policy_version: int
    reward_version: int
    created_at: float
    updated_at: float
    reason: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    tenant: str = "default"


class RunPage(Message):
    """Runs, newest first. Produced by: trainer (`GET /v1/runs`). `next_cursor` is None on the last page."""

    runs: tuple[RunState, ...]
    next_cursor: str | None = None


class RunStep(Message):
    """One finished step of a run. Produced by: trainer (`GET /v1/runs/{id}/steps`)."""

    run_id: str
    step: int
    at: float
    policy_version: int
    reward_version: int
    metrics: dict[str, float]
    artifacts: dict[str, str] = Field(default_factory=dict)


MAX_STEPS = 512
MAX_VOTES = 4096  # steps times votes of one request


class StepText(Message):
    """One step in text form. `action` is what was understood from the response; empty when they are the same.

    `images` were seen before the action and `next_images` after it; their bytes lie in the artifact store.
    """

    observation: str
    response: str
    next_observation: str
    action: str = ""
    images: tuple[ImageRef, ...] = ()
    next_images: tuple[ImageRef, ...] = ()


class JudgeRequest(Message):
    """Judge every step of a trajectory. Produced by: people. Consumed by: reward (`POST /v1/judge`).

    `votes` and `prompt` are the deployment's own when left out. The same `seed` on the same weights gives the same votes.
    """

    instruction: Annotated[str, Field(min_length=1)]
    system: str = ""
    steps: Annotated[tuple[StepText, ...], Field(min_length=1, max_length=MAX_STEPS)]
    votes: Annotated[int, Field(ge=1, le=64)] | None = None
    prompt: Literal["rubric", "terse"] | None = None
    seed: Annotated[int, Field(ge=0)] | None = None


class VoteText(Message):
    """One vote, +1, -1 or 0 when the judge's text could not be read, and that text."""

    value: Literal[-1, 0, 1]
    text: str


class StepJudgement(Message):
    """The votes on one step. `mean` is over all of them, an invalid vote counting 0."""

    step: int
    votes: tuple[VoteText, ...]
    mean: float
    invalid: int


class JudgeReply(Message):
    """Produced by: reward (`POST /v1/judge`). Consumed by: people.

    `mean` is over all votes, `invalid` counts those that could not be read, `versions` are the weight versions that voted.
    """

    steps: tuple[StepJudgement, ...]
    mean: float
    invalid: int
    versions: tuple[int, ...]
