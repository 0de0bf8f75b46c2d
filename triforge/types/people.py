"""What people and dashboards read and ask: runs, events, judgements of trajectories from outside."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

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
    created_at: float
    updated_at: float
    reason: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    algorithm: str = Field(
        "", description="The preset, its parts, and each option that is not the preset's own."
    )
    tenant: str = "default"


class RunStep(Message):
    """One finished step of a run. Produced by: trainer (`GET /v1/runs/{id}/steps`)."""

    run_id: str
    step: int
    at: float
    policy_version: int
    reward_version: int
    metrics: dict[str, float]
    artifacts: dict[str, str] = Field(default_factory=dict)
