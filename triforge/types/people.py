"""What people and dashboards read and ask: runs, events, judgements of trajectories from outside."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from triforge.config.base import Purpose, TrainedRole
from triforge.types.base import Message

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
    further: dict[TrainedRole, int] = Field(
        default_factory=dict, description="Versions of the models beside those two, by name."
    )
    created_at: float
    updated_at: float
    reason: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    algorithm: str = Field(
        "", description="The preset, its parts, and each option that is not the preset's own."
    )
    tenant: str = "default"

    @property
    def versions(self) -> dict[TrainedRole, int]:
        """The version of each model that the run stands at."""
        return {"policy": self.policy_version, "reward": self.reward_version, **self.further}


class RunStep(Message):
    """One finished step of a run; `further` are versions of models beside those two. Produced by: trainer (`GET /v1/runs/{id}/steps`)."""

    run_id: str
    step: int
    at: float
    policy_version: int
    reward_version: int
    metrics: dict[str, float]
    artifacts: dict[str, str] = Field(default_factory=dict)
    further: dict[TrainedRole, int] = Field(default_factory=dict)

    @property
    def versions(self) -> dict[TrainedRole, int]:
        """The version of each model after the step."""
        return {"policy": self.policy_version, "reward": self.reward_version, **self.further}


SpanKind = Literal["play", "judge", "train", "publish", "credit", "adapt", "record", "wait"]


class Span(Message):
    """Something that a process did, from `start` to `end`, seconds since 1970 by its own clock. Part of `Timeline`.

    `lane` is the process; `name` the trajectory, the group, the model or the phase.
    """

    lane: str
    kind: SpanKind
    name: str
    start: float
    end: float


class Timeline(Message):
    """When each process worked on a step. Produced by: trainer (`GET /v1/runs/{id}/steps/{step}/timeline`). Consumed by: people, dashboards."""

    run_id: str
    step: int
    spans: tuple[Span, ...]


class TrajectorySummary(Message):
    """One rollout of a run in a line. Produced by: trainer (`GET /v1/runs/{id}/trajectories`). Consumed by: people, dashboards.

    `outcome` is +1 of a success, -1 of a failure, None where nothing or only a score was measured; `error` says why nothing
    was, an infrastructure failure. `length` counts steps, `tokens` what the policy sampled. `staleness` is by how many
    versions its oldest token lags behind the weights that were trained. `vote` is the mean of `votes` readable votes; they
    are `against` the outcome if their sign is the other one. `advantage` is the mean of the steps that were trained on; where
    there are none `reason` says why.
    """

    id: str
    run_id: str
    step: int
    purpose: Purpose
    group_id: str
    task_id: str
    task_slot: str
    kind: str = ""
    instruction: str = ""
    outcome: int | None
    score: float | None
    error: str = ""
    length: int
    tokens: int
    truncated: bool
    staleness: int
    votes: int
    vote: float | None
    against: bool
    advantage: float | None
    reason: str = ""


class TrajectoryPage(Message):
    """A page of a run's trajectories, and how many meet the filters. Produced by: trainer. Consumed by: people, dashboards."""

    items: tuple[TrajectorySummary, ...]
    next_cursor: str | None = None
    total: int


class TrajectoryRecord(Message):
    """One trajectory with everything on record. Produced by: trainer (`GET /v1/runs/{id}/trajectories/{id}`). Consumed by: people, dashboards.

    A step has the columns of an export (`triforge.store.step_records.SCHEMA`) that differ from step to step, and as text
    what its ids are: `context` and `tokens`, which are left out where the tokenizer is gone. A group's trajectories come without ids.
    """

    summary: TrajectorySummary
    instruction: str = ""
    steps: tuple[dict[str, Any], ...]
