"""Messages for people and dashboards: runs, events, timelines, trajectories."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from triforge.algorithms.verdict import Word
from triforge.config.base import Purpose, TrainedRole
from triforge.types.base import Message

RunStatus = Literal["queued", "running", "stopping", "stopped", "finished", "failed"]
ENDED: Final[tuple[RunStatus, ...]] = ("stopped", "finished", "failed")
"""Statuses of runs without an orchestrator, which can be rolled back, and resumed unless they are finished."""


class Event(Message):
    """An event. Produced by: every service (stream `events`). Consumed by: people, dashboards."""

    kind: str
    run_id: str = ""
    step: int | None = None
    at: float
    data: dict[str, Any] = Field(default_factory=dict)


class _Versions(Message):
    """The versions of a run's models; `further` are those of models other than policy and reward model, by name."""

    policy_version: int
    reward_version: int
    further: dict[TrainedRole, int] = Field(default_factory=dict)

    @property
    def versions(self) -> dict[TrainedRole, int]:
        """The version of each model."""
        return {"policy": self.policy_version, "reward": self.reward_version, **self.further}


class Verdict(Message):
    """The change that a run's training made. Produced by: trainer. Consumed by: people, dashboards.

    `text` begins with `word` and has the difference of held-out results, its 95 % interval and the episodes; `warnings` are the other
    alarms of the newest step. `advice` is what to try next, `options` what it adds to the command line of `triforge train`.
    """

    word: Word
    text: str
    warnings: tuple[str, ...] = ()
    advice: str = ""
    options: tuple[str, ...] = ()


class RunState(_Versions):
    """A run as the API shows it. Produced by: trainer. Consumed by: people."""

    id: str
    name: str
    pool_id: str
    status: RunStatus
    step: int
    steps: int
    created_at: float
    updated_at: float
    reason: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    algorithm: str = Field(
        "", description="The preset, its parts, and each option that is not the preset's own."
    )
    tenant: str = "default"
    verdict: Verdict | None = Field(
        None, description="Of one run that has finished a step; lists leave it out."
    )

    @property
    def by_trainer(self) -> bool:
        """True if another trainer has the policy, with its versions, tokens and evaluations."""
        return bool(self.config.get("env_adapter", {}).get("played_by") == "trainer")


class RunStep(_Versions):
    """A finished step of a run, with the versions after it. Produced by: trainer (`GET /v1/runs/{id}/steps`)."""

    run_id: str
    step: int
    at: float
    metrics: dict[str, float]
    artifacts: dict[str, str] = Field(default_factory=dict)


class TrajectorySummary(Message):
    """One rollout of a run in a line. Produced by: trainer (`GET /v1/runs/{id}/trajectories`). Consumed by: people, dashboards.

    `outcome` is +1 of a success, -1 of a failure, None where nothing or only a score was measured; `error` is the infrastructure
    failure that prevented it. `length` counts steps, `tokens` the sampled ones. `staleness` is the number of versions that its
    oldest token lags behind the trained weights. `vote` is the mean of `votes` readable votes; they are `against` the outcome if
    their sign is the other one. `advantage` is the mean of the steps that were trained on, or whose tokens another trainer has;
    without any, `reason` is why.
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
    """A page of a run's trajectories, and the number of all that meet the filters. Produced by: trainer. Consumed by: people, dashboards."""

    items: tuple[TrajectorySummary, ...]
    next_cursor: str | None = None
    total: int


class TrajectoryRecord(Message):
    """The whole record of a trajectory. Produced by: trainer (`GET /v1/runs/{id}/trajectories/{id}`). Consumed by: people, dashboards.

    A step has the columns of an export (`triforge.store.step_records.SCHEMA`) that differ from step to step, and the texts of
    its ids, `context` and `tokens`, if the tokenizer can be read. A group's trajectories have no ids.
    """

    summary: TrajectorySummary
    instruction: str = ""
    steps: tuple[dict[str, Any], ...]


class StepLabel(Message):
    """A judgement of a step of a rollout, +1 or -1, `by` a person or another system. Part of `LabelRequest`.

    `step` is the index of the step in the rollout, from 0.
    """

    trajectory: Annotated[str, Field(min_length=1, max_length=120)]
    step: Annotated[int, Field(ge=0, le=10**6)]
    label: Literal[-1, 1]
    by: Annotated[str, Field(max_length=100, description="The name of the source.")] = ""


class LabelRequest(Message):
    """Body of `POST /v1/runs/{id}/labels`. Produced by: people, other systems. Consumed by: trainer."""

    labels: Annotated[tuple[StepLabel, ...], Field(min_length=1, max_length=1000)]


class LabelRecord(StepLabel):
    """A stored label. Produced by: trainer (`GET /v1/runs/{id}/labels`). Consumed by: people, other systems."""

    at: float


class UnsureStep(Message):
    """A step without a label. Produced by: trainer (`GET /v1/runs/{id}/unsure`). Consumed by: people, dashboards.

    `sureness` is 0 where the judge's votes are split evenly and 1 where they agree; of a single vote it is `|2 p - 1|`, p being the
    probability that it was sampled with. `step` has the columns of an export, without ids; `before` are the actions before it.
    """

    summary: TrajectorySummary
    instruction: str
    before: tuple[str, ...]
    step: dict[str, Any]
    sureness: float
