"""All tables: small facts and their history. Large payloads are in the artifact store."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Base of all tables; dictionaries and lists are JSON columns."""

    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON, float: Float}  # noqa: RUF012 (SQLAlchemy reads it so)


def _where(condition: str) -> dict[str, Any]:
    """Return the keywords of an index over the rows that meet the condition."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class TenantRow(Base):
    """A tenant of a deployment."""

    __tablename__ = "tenants"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[float]


class KeyRow(Base):
    """An API key, with the SHA-256 of its secret; the secret has 256 bits and cannot be found by search."""

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    scope: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    last_used_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class PoolRow(Base):
    """A named set of tasks of one environment family. Names and idempotency keys are unique within a tenant."""

    __tablename__ = "pools"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), default="default", server_default="default")
    name: Mapped[str] = mapped_column(String(200))
    family: Mapped[str] = mapped_column(String(64))
    options: Mapped[dict[str, Any]]
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float]
    state: Mapped[str] = mapped_column(String(16), default="active", server_default="active")
    approval: Mapped[str] = mapped_column(
        String(16), default="automatic", server_default="automatic"
    )
    __table_args__ = (
        Index("one_pool_a_name", "tenant", "name", unique=True),
        Index("one_pool_a_key", "tenant", "idempotency_key", unique=True),
    )


class TaskRow(Base):
    """A version of a task. `slot` is the id of the first version; at most one version of a slot is `active`, at most one `pending`.

    `position` counts the slots of a pool's split from 0; all versions of a slot share it, and `pinned`.
    """

    __tablename__ = "tasks"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    pool_id: Mapped[str] = mapped_column(ForeignKey("pools.id"))
    slot: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    parent_id: Mapped[str | None] = mapped_column(String(64))
    split: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    position: Mapped[int]
    instruction: Mapped[str] = mapped_column(Text)
    params: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(64), default="", server_default="")
    pinned: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    __table_args__ = (
        UniqueConstraint("slot", "version"),
        Index("tasks_by_pool", "pool_id", "split", "state", "position"),
        Index("tasks_in_order", "pool_id", "split", "position", "version", unique=True),
        Index("one_active_a_slot", "slot", unique=True, **_where("state = 'active'")),
        Index("one_pending_a_slot", "slot", unique=True, **_where("state = 'pending'")),
    )


class ProposalRow(Base):
    """A rewrite with its diagnosis, prompt, answer, checks, measurements and verdict, accepted or not."""

    __tablename__ = "proposals"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    pool_id: Mapped[str] = mapped_column(ForeignKey("pools.id"))
    slot: Mapped[str] = mapped_column(String(64))
    run_id: Mapped[str] = mapped_column(String(64), index=True)
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float]
    document: Mapped[dict[str, Any]]
    __table_args__ = (Index("proposals_by_pool", "pool_id", "state"),)


class PlanRow(Base):
    """The plan of a step: the task versions of its groups. Written once, so a resumed step plays the same."""

    __tablename__ = "plans"
    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    pool_id: Mapped[str] = mapped_column(ForeignKey("pools.id"))
    cursor: Mapped[int]  # draws of train tasks by the run so far
    groups: Mapped[list[Any]]


class MeasurementRow(Base):
    """The result of a group of a task version; unique by group, so a repeated delivery counts once."""

    __tablename__ = "measurements"
    group_id: Mapped[str] = mapped_column(String(120), primary_key=True)
    run_id: Mapped[str] = mapped_column(String(64))
    step: Mapped[int]
    task_id: Mapped[str] = mapped_column(String(64), index=True)
    purpose: Mapped[str] = mapped_column(String(24))
    proposal_id: Mapped[str | None] = mapped_column(String(64), index=True)
    successes: Mapped[int]
    measured: Mapped[int]
    rollouts: Mapped[int]
    policy_version: Mapped[int]  # the oldest that sampled a token
    newest_version: Mapped[int | None]
    score: Mapped[float | None]  # mean over the scored rollouts
    scored: Mapped[int] = mapped_column(Integer, default=0, server_default="0")


class NoteRow(Base):
    """A note that the controller of a method keeps on a run or a task, by `key` where it keeps several."""

    __tablename__ = "controller_notes"
    method: Mapped[str] = mapped_column(String(64), primary_key=True)
    subject: Mapped[str] = mapped_column(String(64), primary_key=True)  # the id of the run or task
    key: Mapped[str] = mapped_column(String(64), primary_key=True, default="")
    value: Mapped[dict[str, Any]]


class RunRow(Base):
    """A run: its config, its progress, and the reason of its end."""

    __tablename__ = "runs"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64), default="default", server_default="default")
    name: Mapped[str] = mapped_column(String(200))
    pool_id: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16), index=True)
    step: Mapped[int]
    policy_version: Mapped[int]
    reward_version: Mapped[int]
    # models by name
    further: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict, server_default="{}")
    config: Mapped[dict[str, Any]]
    state: Mapped[dict[str, Any]]
    reason: Mapped[str] = mapped_column(Text)
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    created_at: Mapped[float]
    updated_at: Mapped[float]
    __table_args__ = (Index("one_run_a_key", "tenant", "idempotency_key", unique=True),)


class StepRow(Base):
    """A finished step of a run; written in the transaction that moves the run's step and versions."""

    __tablename__ = "steps"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    policy_version: Mapped[int]
    reward_version: Mapped[int]
    further: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict, server_default="{}")
    metrics: Mapped[dict[str, Any]]
    artifacts: Mapped[dict[str, Any]]
    at: Mapped[float]


class TrajectoryRow(Base):
    """A rollout of a committed step, for search; the step's record has all of it.

    `number` is its place among the rollouts of its step; `words` the beginning of its instruction and actions in lower case.
    """

    __tablename__ = "trajectories"
    id: Mapped[str] = mapped_column(String(120), primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    step: Mapped[int]
    number: Mapped[int]
    purpose: Mapped[str] = mapped_column(String(24))
    group_id: Mapped[str] = mapped_column(String(120), index=True)
    task_id: Mapped[str] = mapped_column(String(64))
    task_slot: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(64))
    outcome: Mapped[int | None]
    score: Mapped[float | None]
    length: Mapped[int]
    tokens: Mapped[int]
    truncated: Mapped[bool] = mapped_column(Boolean)
    staleness: Mapped[int]
    votes: Mapped[int]
    vote: Mapped[float | None]
    against: Mapped[bool] = mapped_column(Boolean)
    advantage: Mapped[float | None]
    reason: Mapped[str] = mapped_column(String(64))
    error: Mapped[str] = mapped_column(Text)
    instruction: Mapped[str] = mapped_column(Text)
    words: Mapped[str] = mapped_column(Text)
    __table_args__ = (Index("trajectories_by_step", "run_id", "step", "number", unique=True),)


class LabelRow(Base):
    """A label of a step of a rollout by one source; `number` counts the labels of a run, in the order in which they came."""

    __tablename__ = "labels"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    trajectory_id: Mapped[str] = mapped_column(String(120), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)  # of the trajectory
    by: Mapped[str] = mapped_column(String(100), primary_key=True)
    label: Mapped[int]
    number: Mapped[int]
    at: Mapped[float]
    __table_args__ = (Index("labels_in_order", "run_id", "number", unique=True),)


class WeightsRow(Base):
    """A weight version of a run; `origin` is the version that it copies after a rollback."""

    __tablename__ = "weights"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(16), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    uri: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))
    at: Mapped[float]
    origin: Mapped[int | None]


class SessionGroupRow(Base):
    """A group that sessions play, with its free places. `attempt` counts its starts."""

    __tablename__ = "session_groups"
    group_id: Mapped[str] = mapped_column(String(120), primary_key=True)
    attempt: Mapped[int]
    run_id: Mapped[str] = mapped_column(String(64))
    task_id: Mapped[str] = mapped_column(String(64))
    key: Mapped[str] = mapped_column(String(200))  # shared by its sessions; empty if none
    open: Mapped[bool]
    free: Mapped[list[Any]]
    free_count: Mapped[int]
    document: Mapped[dict[str, Any]]  # the GroupTask
    created_at: Mapped[float]
    __table_args__ = (Index("session_groups_by_run", "run_id", "open", "created_at"),)


class SessionRow(Base):
    """A session of an agent: its tenant, its place in a group, its reward and, after the reward, its turns."""

    __tablename__ = "sessions"
    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64))
    run_id: Mapped[str | None] = mapped_column(String(64), index=True)
    group_id: Mapped[str | None] = mapped_column(String(120))
    attempt: Mapped[int]
    index: Mapped[int | None]
    task_id: Mapped[str | None] = mapped_column(String(64))
    key: Mapped[str] = mapped_column(String(200))
    tags: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    expires_at: Mapped[float]
    reward: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    reason: Mapped[str] = mapped_column(Text)
    turns: Mapped[str | None] = mapped_column(Text, deferred=True)
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    __table_args__ = (
        Index("sessions_by_group", "group_id", "attempt", "index"),
        Index("one_session_a_key", "tenant", "idempotency_key", unique=True),
    )
