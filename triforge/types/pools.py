"""Pools as people and the orchestrator see them: how they are made, listed, planned from, and how their tasks changed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.types.adaptation import Proposal
from triforge.types.base import Approval, Message, Params, PoolStatus, Purpose, Split
from triforge.types.changes import AuditEntry
from triforge.types.tasks import PlannedGroup, Task

MAX_TASKS = 100_000


class TaskUpload(Message):
    """One row of an upload. Produced by: people. Consumed by: env_adapter (`POST /v1/pools`)."""

    params: Params
    split: Split = "train"


class GenerateSpec(Message):
    """Let the family make tasks: `count` to train on and `heldout` others that no training task equals.

    Produced by: people. Consumed by: env_adapter. `options` are the family's options of difficulty.
    """

    count: Annotated[int, Field(ge=0, le=MAX_TASKS)]
    heldout: Annotated[int, Field(ge=0, le=MAX_TASKS)] = 0
    seed: Annotated[int, Field(ge=0)] = 0
    options: Params = Field(default_factory=dict)


class PoolRequest(Message):
    """Make a pool of uploaded tasks, generated ones, or both.

    Produced by: people. Consumed by: env_adapter (`POST /v1/pools`). `options` are how its tasks are played where a run's
    own `env_adapter.options` do not say otherwise. With `approval` "manual" a rewrite that the test accepts waits for a
    person before it replaces its task.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    environment: str
    options: Params = Field(default_factory=dict)
    tasks: tuple[TaskUpload, ...] = ()
    generate: GenerateSpec | None = None
    approval: Approval = "automatic"


class PoolState(Message):
    """A pool with its counts. Produced by: env_adapter. Consumed by: people, orchestrator.

    `tasks` counts versions by split and state. `proposals` counts rewrites by state, null controls left out;
    `null_control` counts what the acceptance test said of the unchanged tasks among the candidates. Runs on a paused
    pool wait at their next step; a retired one is played no more. `programs`: its tasks are solved by programs. `tenant`
    is whose it is.
    """

    id: str
    name: str
    environment: str
    options: Params = Field(default_factory=dict)
    created_at: float
    tasks: dict[Split, dict[str, int]]
    proposals: dict[str, int]
    null_control: dict[str, int] = Field(default_factory=dict)
    state: PoolStatus = "active"
    approval: Approval = "automatic"
    programs: bool = False
    tenant: str = "default"


class PoolPage(Message):
    """Pools by name. Produced by: env_adapter (`GET /v1/pools`). `next_cursor` is None on the last page."""

    pools: tuple[PoolState, ...]
    next_cursor: str | None = None


class TaskPage(Message):
    """Task versions in order of split, position, version. Produced by: env_adapter (`GET /v1/pools/{id}/tasks`)."""

    tasks: tuple[Task, ...]
    next_cursor: str | None = None


class ProposalPage(Message):
    """Rewrites, oldest first. Produced by: env_adapter (`GET /v1/pools/{id}/proposals`)."""

    proposals: tuple[Proposal, ...]
    next_cursor: str | None = None


class Measurement(Message):
    """How one group of a task version went; `successes <= measured <= rollouts`. Produced by: env_adapter.

    `policy_version` is the oldest version that sampled a token of it, `newest_version` the newest.
    """

    group_id: str
    run_id: str
    step: int
    purpose: Purpose
    proposal_id: str | None = None
    successes: int
    measured: int
    rollouts: int
    policy_version: int
    newest_version: int | None = None


class TaskDetail(Message):
    """A task version with its measurements, oldest first. Produced by: env_adapter (`GET /v1/tasks/{id}`)."""

    task: Task
    measurements: tuple[Measurement, ...] = ()


class ProposalDetail(Message):
    """A rewrite with the groups that measured it, oldest first, and what people did about it.

    Produced by: env_adapter (`GET /v1/proposals/{id}`). Groups with purpose `measure_parent` played the parent, the
    others the candidate.
    """

    proposal: Proposal
    measurements: tuple[Measurement, ...] = ()
    changes: tuple[AuditEntry, ...] = ()


class LineageVersion(Message):
    """One node of a slot's tree: the version, the rewrite that made it, its measurements and what came of it.

    `children` are ids of the versions rewritten from this one; `attempts` are rewrites that led to no valid candidate.
    """

    task: Task
    made_by: Proposal | None = None
    measurements: tuple[Measurement, ...] = ()
    children: tuple[str, ...] = ()
    attempts: tuple[Proposal, ...] = ()


class Lineage(Message):
    """All versions of a slot, the root first. Produced by: env_adapter (`GET /v1/tasks/{id}/lineage`).

    The tree is a list whose nodes name their children, because a slot may be hundreds of versions deep. A version with a
    parent that no rewrite made is a roll-back: a copy of its parent. `active_id` is None while the slot is not played.
    `changes` is what people did to the slot.
    """

    slot: str
    pool_id: str
    active_id: str | None
    versions: tuple[LineageVersion, ...]
    changes: tuple[AuditEntry, ...] = ()


class PlanRequest(Message):
    """Ask what a step plays. Produced by: orchestrator. Consumed by: env_adapter (`POST /v1/pools/{id}/plans`).

    The first request for (run_id, step, kind) decides; a repeated one gets the same plan whatever else it says. A run that
    measures proposals (`max_pending` above 0) takes over what other runs have left pending if it says `adopt`, and
    withdraws it otherwise. At most the share `max_adapted` of the training groups plays rewritten versions; the other
    slots play their roots.
    """

    run_id: Annotated[str, Field(min_length=1, max_length=64)]
    step: Annotated[int, Field(ge=0, le=10**9)]
    kind: Literal["train", "evaluate"]
    groups: Annotated[int, Field(ge=1, le=100_000)]
    seed: Annotated[int, Field(ge=0)] = 0
    max_pending: Annotated[int, Field(ge=0)] = 0
    adopt: bool = False
    max_adapted: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0


class Plan(Message):
    """The groups of a step. Produced by: env_adapter. Consumed by: orchestrator."""

    groups: tuple[PlannedGroup, ...]
