"""What the service keeps in SQL, as it is read.

Who writes: `pools` makes pools, `plans` makes plans, `adaptation.ledger` and `changes` move slots. All of them, and the
readers, are synchronous and safe under several processes; APIs call them in threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Unpack

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.orm import Session

from services.env_adapter import audit, filters
from services.env_adapter.filters import PoolFilter, ProposalFilter, TaskFilter
from services.env_adapter.rows import (
    measurement_of,
    pool_row,
    pool_states,
    proposal_of,
    proposal_row,
    task_in,
    task_of,
    task_row,
)
from services.env_adapter.slots import current, slot_tag
from triforge.access.callers import own
from triforge.store.database import Database
from triforge.store.tables import AuditRow, MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import (
    AuditPage,
    Lineage,
    LineageVersion,
    Measurement,
    PoolPage,
    PoolState,
    Proposal,
    ProposalDetail,
    ProposalPage,
    RecordPage,
    Task,
    TaskDetail,
    TaskPage,
)

_IN_TIME = (MeasurementRow.policy_version, MeasurementRow.step, MeasurementRow.group_id)


class PoolStore:
    """Reads pools, tasks, lineage and proposals.

    Args:
        database: at head.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def pools(
        self, *, cursor: str = "", limit: int = 100, **wanted: Unpack[PoolFilter]
    ) -> PoolPage:
        """Pools by name, after the name `cursor`."""
        query = select(PoolRow).where(*filters.of_pools(wanted), *own(PoolRow.tenant))
        query = query.where(*filters.after_pool(cursor))
        with self._database.read() as session:
            rows = session.scalars(query.order_by(PoolRow.name, PoolRow.id).limit(limit + 1)).all()
            page = rows[:limit]
            return PoolPage(
                pools=tuple(pool_states(session, page)),
                next_cursor=filters.pool_cursor(page[-1]) if len(rows) > limit else None,
            )

    def pool(self, pool: str) -> PoolState:
        """A pool by id or name.

        Raises:
            NotFoundError: there is no such pool.
        """
        with self._database.read() as session:
            return pool_states(session, [pool_row(session, pool)])[0]

    def tasks(
        self, pool: str, *, cursor: str = "", limit: int = 100, **wanted: Unpack[TaskFilter]
    ) -> TaskPage:
        """Task versions of a pool in order of split, position, version.

        Raises:
            NotFoundError: there is no such pool.
            InputError: the cursor is none of ours.
        """
        with self._database.read() as session:
            owner = pool_row(session, pool)
            query = select(TaskRow).where(*filters.of_tasks(owner.id, wanted))
            if cursor:
                query = query.where(filters.after_task(cursor))
            query = query.order_by(TaskRow.split, TaskRow.position, TaskRow.version)
            rows = session.scalars(query.limit(limit + 1)).all()
            return TaskPage(
                tasks=tuple(task_of(row, owner.family) for row in rows[:limit]),
                next_cursor=filters.task_cursor(rows[limit - 1]) if len(rows) > limit else None,
            )

    def task(self, task_id: str) -> Task:
        """A task version.

        Raises:
            NotFoundError: there is no such version.
        """
        with self._database.read() as session:
            return task_in(session, task_id)

    def detail(self, task_id: str) -> TaskDetail:
        """A task version with its measurements.

        Raises:
            NotFoundError: there is no such version.
        """
        with self._database.read() as session:
            task = task_in(session, task_id)
            found = _measurements(session, [task_id])
            return TaskDetail(task=task, measurements=tuple(found[task_id]))

    def lineage(self, task_id: str) -> Lineage:
        """The tree of the slot that a version belongs to.

        Raises:
            NotFoundError: there is no such version.
        """
        with self._database.read() as session:
            task = task_in(session, task_id)
            rows = session.scalars(
                select(TaskRow).where(TaskRow.slot == task.slot).order_by(TaskRow.version)
            ).all()
            proposals = _proposals(session, [ProposalRow.slot == task.slot])
            measured = _measurements(session, [row.id for row in rows])
            changes = audit.entries(session, [AuditRow.slot == task.slot])
        return Lineage(
            slot=task.slot,
            pool_id=task.pool_id,
            active_id=next((row.id for row in rows if row.state == "active"), None),
            changes=tuple(changes),
            versions=tuple(
                LineageVersion(
                    task=task_of(row, task.family),
                    made_by=next((p for p in proposals if p.candidate_id == row.id), None),
                    measurements=tuple(measured[row.id]),
                    children=tuple(child.id for child in rows if child.parent_id == row.id),
                    attempts=tuple(
                        p for p in proposals if p.parent_id == row.id and p.candidate_id is None
                    ),
                )
                for row in rows
            ),
        )

    def slot_tag(self, task_id: str) -> str:
        """The entity tag of what people change about the slot of a version.

        Raises:
            NotFoundError: there is no such version.
        """
        with self._database.read() as session:
            return slot_tag(current(session, task_row(session, task_id).slot))

    def proposals(
        self, pool: str, *, cursor: str = "", limit: int = 100, **wanted: Unpack[ProposalFilter]
    ) -> ProposalPage:
        """Rewrites of a pool, oldest first.

        Raises:
            NotFoundError: there is no such pool.
            InputError: the cursor is none of ours.
        """
        with self._database.read() as session:
            conditions = filters.of_proposals(pool_row(session, pool).id, wanted)
            if cursor:
                last = session.get(ProposalRow, cursor)
                if last is None:
                    raise filters.no_cursor(cursor)
                place = tuple_(ProposalRow.created_at, ProposalRow.id)
                conditions.append(place > (last.created_at, last.id))
            found = _proposals(session, conditions, limit=limit + 1)
        more = len(found) > limit
        return ProposalPage(
            proposals=tuple(found[:limit]), next_cursor=found[limit - 1].id if more else None
        )

    def proposal(self, proposal_id: str) -> ProposalDetail:
        """A rewrite with its measurements and what people did about it.

        Raises:
            NotFoundError: there is no such proposal.
        """
        with self._database.read() as session:
            row = proposal_row(session, proposal_id)
            measured = session.scalars(
                select(MeasurementRow)
                .where(MeasurementRow.proposal_id == row.id)
                .order_by(*_IN_TIME)
            )
            return ProposalDetail(
                proposal=proposal_of(row),
                measurements=tuple(measurement_of(found) for found in measured),
                changes=tuple(audit.entries(session, [AuditRow.subject == row.id])),
            )

    def changes(
        self, pool: str, *, slot: str = "", cursor: str = "", limit: int = 100
    ) -> AuditPage:
        """What people changed about a pool, oldest first.

        Raises:
            NotFoundError: there is no such pool.
            InputError: the cursor is none of ours.
        """
        with self._database.read() as session:
            wanted = [AuditRow.pool_id == pool_row(session, pool).id]
            if slot:
                wanted.append(AuditRow.slot == slot)
            wanted += filters.after_entry(cursor)
            found = audit.entries(session, wanted, limit=limit + 1)
        more = len(found) > limit
        return AuditPage(
            changes=tuple(found[:limit]), next_cursor=str(found[limit - 1].id) if more else None
        )

    def record(
        self, *, service: str = "", key_id: str = "", cursor: str = "", limit: int = 100
    ) -> RecordPage:
        """Everything on record about the caller's tenant, oldest first; all of it for who sees all tenants.

        Raises:
            InputError: the cursor is none of ours.
        """
        wanted = own(AuditRow.tenant) + filters.after_entry(cursor)
        wanted += [AuditRow.service == service] if service else []
        wanted += [AuditRow.key_id == key_id] if key_id else []
        with self._database.read() as session:
            found = audit.whole(session, wanted, limit=limit + 1)
        more = len(found) > limit
        return RecordPage(
            entries=tuple(found[:limit]), next_cursor=str(found[limit - 1].id) if more else None
        )

    def proposal_counts(self) -> list[tuple[str, str, int]]:
        """(pool name, state, proposals) over all pools."""
        with self._database.read() as session:
            rows = session.execute(
                select(PoolRow.name, ProposalRow.state, func.count())
                .join(ProposalRow, ProposalRow.pool_id == PoolRow.id)
                .group_by(PoolRow.name, ProposalRow.state)
            )
            return [(name, state, count) for name, state, count in rows]


def _proposals(
    session: Session, wanted: Iterable[ColumnElement[bool]], *, limit: int | None = None
) -> list[Proposal]:
    query = select(ProposalRow).where(*wanted).order_by(ProposalRow.created_at, ProposalRow.id)
    return [proposal_of(row) for row in session.scalars(query.limit(limit))]


def _measurements(session: Session, task_ids: list[str]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = defaultdict(list)
    for row in session.scalars(
        select(MeasurementRow).where(MeasurementRow.task_id.in_(task_ids)).order_by(*_IN_TIME)
    ):
        found[row.task_id].append(measurement_of(row))
    return found
