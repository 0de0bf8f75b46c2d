"""Draws and reports in SQL. All functions block; each change is one transaction.

A draw takes the free places of whole groups of a run, as sessions that are open until the lease is over; a place that is not reported
is free again then (`SessionStore.expire`). A report fills places with turns without tokens.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, undefer

from services.env_adapter.pools.rows import pool_row, task_in
from services.env_adapter.sidecar.conversations import turns_of
from triforge.access.callers import caller
from triforge.config import EnvAdapterSection
from triforge.errors import BusyError, ConflictError, NotFoundError
from triforge.store.database import Database
from triforge.store.tables import RunRow, SessionGroupRow, SessionRow
from triforge.types import (
    ENDED,
    Draw,
    DrawnTask,
    GroupTask,
    Report,
    RolloutReport,
    SessionReward,
    TextMessage,
    Turn,
)

_TURNS: Final = TypeAdapter(tuple[Turn, ...])
_FAILED: Final = "the trainer reports: "


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a reported rollout; its group may have been opened again since."""

    id: str
    group_id: str
    index: int
    replaced: bool


class SidecarStore:
    """Draws and reports of a trainer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def draw(self, pool: str, n: int, lease: str) -> Draw:
        """Draw up to `n` tasks of the pool's run; the same lease gives the same tasks again.

        Raises:
            NotFoundError: there is no such pool.
            ConflictError: no run of the pool is played by a trainer.
            BusyError: no task is free now.
        """
        try:
            return self._draw(pool, n, lease)
        except IntegrityError:  # the same request at the same time
            return self._draw(pool, n, lease)

    def _draw(self, pool: str, n: int, lease: str) -> Draw:
        with self._database.write() as session:
            now, owner = self._database.now(session), pool_row(session, pool)
            mine = select(SessionRow).where(
                SessionRow.tenant == owner.tenant, SessionRow.key == lease
            )
            drawn = list(session.scalars(mine.order_by(SessionRow.idempotency_key)))
            if not drawn:
                run = trainer_run(session, owner.id)
                for group in _free_groups(session, run.id, n):
                    drawn += _take(session, group, run, lease, now, len(drawn))
            left_s = min(row.expires_at for row in drawn) - now
            tasks = tuple(_tasks_of(session, drawn))
            return Draw(run_id=drawn[0].run_id or "", left_s=max(0.0, left_s), tasks=tasks)

    def report(self, pool: str, report: Report) -> list[Place]:
        """Fill places; return them in the report's order.

        Raises:
            NotFoundError: there is no such pool, or no such rollout in it.
            ConflictError: a rollout was reported differently, or its lease is over.
        """
        with self._database.write() as session:
            owner, now = pool_row(session, pool), self._database.now(session)
            places = dict[str, Place]()
            # sorted: two reports lock rows in the same order
            for reported in sorted(report.rollouts, key=lambda one: one.id):
                row, group = _place(session, owner.id, reported.id)
                _fill(row, reported, report.policy_version, now)
                replaced = row.attempt < group.attempt
                places[row.id] = Place(row.id, group.group_id, row.index or 0, replaced)
            return [places[reported.id] for reported in report.rollouts]

    def expect_run(self, pool: str) -> None:
        """Refuse to wait for credit that nothing gives any more.

        Raises:
            ConflictError: no run of the pool is played by a trainer.
        """
        with self._database.read() as session:
            trainer_run(session, pool_row(session, pool).id)


def trainer_run(session: Session, pool_id: str) -> RunRow:
    """Return the oldest run of a pool that has not ended and is played by a trainer; ConflictError if there is none."""
    alive = select(RunRow).where(RunRow.pool_id == pool_id, RunRow.status.not_in(ENDED))
    for run in session.scalars(alive.order_by(RunRow.created_at)):
        if EnvAdapterSection.model_validate(run.config.get("env_adapter", {})).by_trainer:
            return run
    raise ConflictError(
        f"no run of pool {pool_id} waits for a trainer; start one with `triforge run start {pool_id}` on a deployment of "
        "`triforge up --only tasks,judge`"
    )


def _free_groups(session: Session, run_id: str, n: int) -> list[SessionGroupRow]:
    """Lock and return up to `n` groups with free places: the pairs that measure rewrites first, each as a whole if it is there.

    A group whose lease is just running out, place by place, is not free yet.
    """
    drawn = select(SessionRow.group_id).where(
        SessionRow.run_id == run_id, SessionRow.status == "open"
    )
    rows = session.scalars(
        select(SessionGroupRow)
        .where(
            SessionGroupRow.run_id == run_id,
            SessionGroupRow.open.is_(True),
            SessionGroupRow.free_count > 0,
            SessionGroupRow.group_id.not_in(drawn),
        )
        .order_by(SessionGroupRow.created_at, SessionGroupRow.group_id)
        .with_for_update()
    ).all()
    pairs, others = defaultdict[str, list[SessionGroupRow]](list), list[SessionGroupRow]()
    for row in rows:
        proposal = row.document.get("proposal_id")
        (pairs[proposal] if proposal else others).append(row)
    chosen = list[SessionGroupRow]()
    halves = list[SessionGroupRow]()
    for pair in pairs.values():
        if len(pair) > 1 and len(chosen) + len(pair) <= n:
            chosen += pair
        else:
            halves += pair
    chosen = [*chosen, *others, *halves][:n]
    if not chosen:
        raise BusyError(
            f"run {run_id} has no free task: its tasks are drawn, or it trains; try again",
            retry_after_s=1.0,
        )
    return chosen


def _take(
    session: Session, group: SessionGroupRow, run: RunRow, lease: str, now: float, first: int
) -> Iterator[SessionRow]:
    """Take all free places of a group."""
    lease_s = _task_of(group).env_adapter.episode_deadline_s
    for number, index in enumerate(group.free, start=first):
        row = SessionRow(
            id=uuid.uuid4().hex[:12], tenant=run.tenant, status="open", digest="", run_id=run.id, group_id=group.group_id,
            attempt=group.attempt, index=index, task_id=group.task_id, key=lease, tags={}, created_at=now,
            expires_at=now + lease_s, reason="", idempotency_key=f"{lease}/{number:06d}",
        )  # fmt: skip
        session.add(row)
        yield row
    group.free, group.free_count, group.key = [], 0, lease


def _tasks_of(session: Session, places: Sequence[SessionRow]) -> Iterator[DrawnTask]:
    """Yield the tasks of places that were drawn together."""
    by_group = defaultdict[str, list[SessionRow]](list)
    for place in places:
        by_group[place.group_id or ""].append(place)
    for group_id, own in by_group.items():
        group = _task_of(session.get_one(SessionGroupRow, group_id))
        task = task_in(session, group.task_id)
        yield DrawnTask(
            group_id=group_id,
            purpose=group.purpose,
            proposal_id=group.proposal_id,
            rollouts=tuple(place.id for place in own),
            messages=(TextMessage(role="user", content=task.instruction),),
            task=task,
            options=group.env_adapter.options,
        )


def _place(session: Session, pool_id: str, name: str) -> tuple[SessionRow, SessionGroupRow]:
    """Lock and return a drawn place with its group."""
    row = session.get(SessionRow, name, options=[undefer(SessionRow.turns)])
    run = session.get(RunRow, row.run_id) if row is not None and row.run_id else None
    if row is None or run is None or run.pool_id != pool_id or not caller().sees(run.tenant):
        raise NotFoundError(
            f"rollouts: {name[:80]!r} does not exist in this pool; a draw names the ids of its rollouts"
        )
    group = session.get_one(SessionGroupRow, row.group_id, with_for_update=True)
    session.refresh(row, with_for_update=True)
    return row, group


def _fill(row: SessionRow, reported: RolloutReport, version: int, now: float) -> None:
    """Fill a place; the same report again changes nothing."""
    tags = {"policy_version": str(version), "report": _digest(reported)}
    if row.tags:
        if row.tags != tags:
            raise ConflictError(
                f"rollout {row.id} was reported before, with other messages, another result or another policy_version"
            )
        return
    if row.status != "open":
        raise ConflictError(f"rollout {row.id} is over: {row.reason}; its task was given to others")
    row.tags = tags
    if reported.error:
        row.status, row.reason = "failed", f"{_FAILED}{reported.error}"
        return
    turns = turns_of(reported, version, now)
    rewards = {turn.id: value for turn, value in zip(turns, reported.rewards, strict=False)}
    reward = SessionReward(score=reported.score, success=reported.success, steps=rewards)
    row.status, row.reward = "finished", reward.model_dump()
    row.turns = _TURNS.dump_json(turns).decode()


def _digest(reported: RolloutReport) -> str:
    return hashlib.sha256(reported.model_dump_json().encode()).hexdigest()


def _task_of(group: SessionGroupRow) -> GroupTask:
    return GroupTask.model_validate(group.document)
