"""Queries on pools, tasks and proposals: pages with cursors and filters, details, lineage, export.

All functions block and are safe in several processes; APIs call them in threads. A filter that is None or empty selects
everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, TypeVar

from sqlalchemy import ColumnElement, Select, func, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from services.env_adapter.pools.rows import (
    pool_row,
    pool_states,
    proposal_of,
    proposal_row,
    task_in,
    task_of,
    versions_of,
)
from triforge.access.callers import own
from triforge.errors import InputError
from triforge.store.database import Database
from triforge.store.tables import MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import (
    Lineage,
    Measurement,
    Page,
    PoolState,
    Proposal,
    ProposalDetail,
    Split,
    Task,
    TaskDetail,
)

Condition = ColumnElement[bool]
_Row = TypeVar("_Row")

_EXPORT_PAGE: Final = 500
_TASK_CURSOR: Final = re.compile(r"(train|heldout)\.([0-9]{1,9})\.([0-9]{1,9})")


class PoolStore:
    """Reads pools, tasks, lineage and proposals.

    An id that does not exist raises NotFoundError, an unknown cursor InputError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def pools(self, *, cursor: str = "", limit: int = 100) -> Page[PoolState]:
        """Return pools by name, after the cursor `name/id` or after a name."""
        conditions = [*own(PoolRow.tenant)]
        name, _, id_ = cursor.partition("/")
        if id_:
            conditions.append(tuple_(PoolRow.name, PoolRow.id) > (name, id_))
        elif name:
            conditions.append(PoolRow.name > name)
        query = select(PoolRow).where(*conditions).order_by(PoolRow.name, PoolRow.id)
        with self._database.read() as session:
            rows, last = _page(session, query, limit)
            return Page[PoolState](
                items=tuple(pool_states(session, rows)),
                next_cursor=f"{last.name}/{last.id}" if last else None,
            )

    def pool(self, pool: str) -> PoolState:
        """Return a pool with its counts, by id or name."""
        with self._database.read() as session:
            return pool_states(session, [pool_row(session, pool)])[0]

    def tasks(
        self,
        pool: str,
        *,
        state: str | None = None,
        split: Split | None = None,
        search: str = "",
        cursor: str = "",
        limit: int = 100,
    ) -> Page[Task]:
        """Return task versions of a pool by split, position, version; `search` is a part of the instruction."""
        place = (TaskRow.split, TaskRow.position, TaskRow.version)
        with self._database.read() as session:
            owner = pool_row(session, pool)
            conditions = [
                TaskRow.pool_id == owner.id,
                *_equal(TaskRow.state, state),
                *_equal(TaskRow.split, split),
            ]
            if search:
                conditions.append(TaskRow.instruction.icontains(search, autoescape=True))
            if cursor:
                match = _TASK_CURSOR.fullmatch(cursor)
                if match is None:
                    raise _unknown_cursor(cursor)
                conditions.append(tuple_(*place) > (match[1], int(match[2]), int(match[3])))
            query = select(TaskRow).where(*conditions).order_by(*place)
            rows, last = _page(session, query, limit)
            return Page[Task](
                items=tuple(task_of(row, owner.family) for row in rows),
                next_cursor=f"{last.split}.{last.position}.{last.version}" if last else None,
            )

    def task(self, task_id: str) -> Task:
        """Return a task version."""
        with self._database.read() as session:
            return task_in(session, task_id)

    def detail(self, task_id: str) -> TaskDetail:
        """Return a task version with its measurements and the rewrites made from it."""
        return next(v for v in self.lineage(task_id).versions if v.task.id == task_id)

    def lineage(self, task_id: str) -> Lineage:
        """Return all versions of the slot that a version belongs to."""
        with self._database.read() as session:
            task = task_in(session, task_id)
            tasks = versions_of(session, task)
            query = _in_time(select(ProposalRow).where(ProposalRow.slot == task.slot))
            proposals = [proposal_of(row) for row in session.scalars(query)]
            measured = _measurements(session, MeasurementRow.task_id.in_([one.id for one in tasks]))
        versions = tuple(
            TaskDetail(
                task=version,
                made_by=next((p for p in proposals if p.candidate_id == version.id), None),
                measurements=tuple(m for id_, m in measured if id_ == version.id),
                children=tuple(child.id for child in tasks if child.parent_id == version.id),
                attempts=tuple(
                    p for p in proposals if p.parent_id == version.id and p.candidate_id is None
                ),
            )
            for version in tasks
        )
        return Lineage(
            slot=task.slot,
            pool_id=task.pool_id,
            active_id=next((one.id for one in tasks if one.state == "active"), None),
            versions=versions,
        )

    def proposals(
        self,
        pool: str,
        *,
        state: str | None = None,
        run_id: str = "",
        cursor: str = "",
        limit: int = 100,
    ) -> Page[Proposal]:
        """Return proposals of a pool, oldest first."""
        with self._database.read() as session:
            conditions = [
                ProposalRow.pool_id == pool_row(session, pool).id,
                *_equal(ProposalRow.state, state),
                *_equal(ProposalRow.run_id, run_id),
            ]
            if cursor:
                after = session.get(ProposalRow, cursor)
                if after is None:
                    raise _unknown_cursor(cursor)
                place = tuple_(ProposalRow.created_at, ProposalRow.id)
                conditions.append(place > (after.created_at, after.id))
            rows, last = _page(session, _in_time(select(ProposalRow).where(*conditions)), limit)
            return Page[Proposal](
                items=tuple(map(proposal_of, rows)), next_cursor=last.id if last else None
            )

    def proposal(self, proposal_id: str) -> ProposalDetail:
        """Return a proposal with its measurements."""
        with self._database.read() as session:
            row = proposal_row(session, proposal_id)
            measured = _measurements(session, MeasurementRow.proposal_id == row.id)
            return ProposalDetail(
                proposal=proposal_of(row), measurements=tuple(m for _, m in measured)
            )

    def proposal_counts(self) -> list[tuple[str, str, int]]:
        """Return (pool name, state, number of proposals) for all pools."""
        with self._database.read() as session:
            rows = session.execute(
                select(PoolRow.name, ProposalRow.state, func.count())
                .join(ProposalRow, ProposalRow.pool_id == PoolRow.id)
                .group_by(PoolRow.name, ProposalRow.state)
            )
            return [(name, state, count) for name, state, count in rows]

    def export(self, pool: str, split: Split | None = None) -> Iterator[str]:
        """Return the current version of each slot as JSON lines of which the same pool can be made; retired slots are left out.

        The lines are read a page at a time, so the export holds neither all tasks nor a long transaction. A change in the
        meantime may be in it or not.

        Raises:
            NotFoundError: there is no such pool; raised by this call, before the first line.
        """
        return self._lines(self.pool(pool).id, split)

    def _lines(self, pool: str, split: Split | None) -> Iterator[str]:
        cursor: str | None = ""
        while cursor is not None:
            page = self.tasks(pool, split=split, cursor=cursor, limit=_EXPORT_PAGE)
            yield "".join(
                json.dumps({"params": task.params, "split": task.split}) + "\n"
                for task in page.items
                if task.state in ("active", "paused")
            )
            cursor = page.next_cursor


def _equal(column: InstrumentedAttribute[str], value: str | None) -> list[Condition]:
    return [column == value] if value else []


def _unknown_cursor(cursor: str) -> InputError:
    return InputError(f"cursor: given {cursor!r}, expected the next_cursor of a page")


def _page(session: Session, query: Select[_Row], limit: int) -> tuple[list[_Row], _Row | None]:
    """Return at most `limit` rows, and the last of them if there are more."""
    rows = list(session.scalars(query.limit(limit + 1)))
    return rows[:limit], rows[limit - 1] if len(rows) > limit else None


def _in_time(query: Select[ProposalRow]) -> Select[ProposalRow]:
    return query.order_by(ProposalRow.created_at, ProposalRow.id)


def _measurements(session: Session, condition: Condition) -> list[tuple[str, Measurement]]:
    """Return (task version, measurement) in time."""
    in_time = (MeasurementRow.policy_version, MeasurementRow.step, MeasurementRow.group_id)
    rows = session.scalars(select(MeasurementRow).where(condition).order_by(*in_time))
    return [(row.task_id, Measurement.model_validate(row, from_attributes=True)) for row in rows]
