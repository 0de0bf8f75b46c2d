"""What the service keeps in SQL, as it is read: pages with cursors and filters, details, lineage, exports.

Synchronous and safe under several processes, as are the writers (`pools`, `plans`, `changes`, `adaptation.measurement`);
APIs call them in threads. A filter that is None or empty asks for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Select, func, select, tuple_
from sqlalchemy.orm import Session

from services.env_adapter.pools.rows import (
    pool_row,
    pool_states,
    proposal_of,
    proposal_row,
    task_in,
    task_of,
    task_row,
    versions_of,
)
from services.env_adapter.pools.slots import current, slot_tag
from triforge.access.callers import own
from triforge.errors import InputError
from triforge.store.database import Database
from triforge.store.tables import AuditRow, MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import (
    AuditEntry,
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
Content = Literal["tasks", "versions", "proposals"]
_Row = TypeVar("_Row")

_EXPORT_PAGE = 500

# What a list is narrowed by: the column that equals the value.
_POOL_FILTERS: dict[str, Any] = {
    "state": PoolRow.state, "approval": PoolRow.approval, "environment": PoolRow.family,
}  # fmt: skip
_TASK_FILTERS: dict[str, Any] = {
    name: getattr(TaskRow, name) for name in ("state", "split", "slot", "kind", "version", "pinned")
}
_PROPOSAL_FILTERS: dict[str, Any] = {
    "state": ProposalRow.state,
    "run_id": ProposalRow.run_id,
    "slot": ProposalRow.slot,
    "direction": ProposalRow.document["direction"].as_string(),
}


class PoolStore:
    """Reads pools, tasks, lineage and proposals.

    What does not exist raises NotFoundError, a cursor that is none of ours InputError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def pools(
        self, *, cursor: str = "", limit: int = 100, search: str = "", **wanted: Any
    ) -> Page[PoolState]:
        """Pools by name (`search` is a part of it), after the cursor `name/id` or after a name."""
        conditions = [*_equal(_POOL_FILTERS, wanted), *own(PoolRow.tenant)]
        if search:
            conditions.append(PoolRow.name.icontains(search, autoescape=True))
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
        """A pool with its counts, by id or name."""
        with self._database.read() as session:
            return pool_states(session, [pool_row(session, pool)])[0]

    def tasks(
        self, pool: str, *, cursor: str = "", limit: int = 100, search: str = "", **wanted: Any
    ) -> Page[Task]:
        """Task versions of a pool by split, position, version; `search` is a part of the instruction."""
        place = (TaskRow.split, TaskRow.position, TaskRow.version)
        with self._database.read() as session:
            owner = pool_row(session, pool)
            conditions = [TaskRow.pool_id == owner.id, *_equal(_TASK_FILTERS, wanted)]
            if search:
                conditions.append(TaskRow.instruction.icontains(search, autoescape=True))
            if cursor:
                found = re.fullmatch(r"(train|heldout)\.([0-9]{1,9})\.([0-9]{1,9})", cursor)
                if found is None:
                    raise _not_ours(cursor)
                conditions.append(tuple_(*place) > (found[1], int(found[2]), int(found[3])))
            query = select(TaskRow).where(*conditions).order_by(*place)
            rows, last = _page(session, query, limit)
            return Page[Task](
                items=tuple(task_of(row, owner.family) for row in rows),
                next_cursor=f"{last.split}.{last.position}.{last.version}" if last else None,
            )

    def task(self, task_id: str) -> Task:
        """A task version."""
        with self._database.read() as session:
            return task_in(session, task_id)

    def detail(self, task_id: str) -> TaskDetail:
        """A task version with its measurements and what came of it."""
        return next(v for v in self.lineage(task_id).versions if v.task.id == task_id)

    def lineage(self, task_id: str) -> Lineage:
        """The tree of the slot that a version belongs to."""
        with self._database.read() as session:
            task = task_in(session, task_id)
            tasks = versions_of(session, task)
            made = select(ProposalRow).where(ProposalRow.slot == task.slot)
            proposals = [proposal_of(row) for row in session.scalars(_in_time(made))]
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
                changes=_changes(session, AuditRow.slot == task.slot),
                versions=versions,
            )

    def slot_tag(self, task_id: str) -> str:
        """The entity tag of what people change about the slot of a version."""
        with self._database.read() as session:
            return slot_tag(current(session, task_row(session, task_id).slot))

    def proposals(
        self, pool: str, *, cursor: str = "", limit: int = 100, **wanted: Any
    ) -> Page[Proposal]:
        """Rewrites of a pool, oldest first."""
        with self._database.read() as session:
            owner = pool_row(session, pool)
            conditions = [ProposalRow.pool_id == owner.id, *_equal(_PROPOSAL_FILTERS, wanted)]
            if cursor:
                after = session.get(ProposalRow, cursor)
                if after is None:
                    raise _not_ours(cursor)
                place = tuple_(ProposalRow.created_at, ProposalRow.id)
                conditions.append(place > (after.created_at, after.id))
            rows, last = _page(session, _in_time(select(ProposalRow).where(*conditions)), limit)
            return Page[Proposal](
                items=tuple(map(proposal_of, rows)), next_cursor=last.id if last else None
            )

    def proposal(self, proposal_id: str) -> ProposalDetail:
        """A rewrite with its measurements and what people did about it."""
        with self._database.read() as session:
            row = proposal_row(session, proposal_id)
            found = _measurements(session, MeasurementRow.proposal_id == row.id)
            return ProposalDetail(
                proposal=proposal_of(row),
                measurements=tuple(m for _, m in found),
                changes=_changes(session, AuditRow.subject == row.id),
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

    def export(self, pool: str, content: Content, split: Split | None = None) -> Iterator[str]:
        """JSON lines, a page at a time as it is read: no list of all tasks, no long transaction.

        `tasks`: the current version of every slot that is played or paused, in the form in which a pool is made of them.
        `versions`: every version of every slot. `proposals`: every rewrite, with everything said about it; it knows no
        split. What changes while the lines are read may be seen or not; no line is half old and half new.

        Raises:
            NotFoundError: there is no such pool; raised by this call, before the first line.
        """
        return self._lines(self.pool(pool).id, content, split)

    def _lines(self, pool: str, content: Content, split: Split | None) -> Iterator[str]:
        cursor: str | None = ""
        while cursor is not None:
            if content == "proposals":
                page = self.proposals(pool, cursor=cursor, limit=_EXPORT_PAGE)
                lines = [proposal.model_dump_json() for proposal in page.items]
                cursor = page.next_cursor
            else:
                tasks = self.tasks(pool, split=split, cursor=cursor, limit=_EXPORT_PAGE)
                lines = [_exported(task, content) for task in tasks.items]
                cursor = tasks.next_cursor
            yield "".join(line + "\n" for line in lines if line)


def _exported(task: Task, content: Content) -> str:
    if content == "versions":
        return task.model_dump_json()
    if task.state not in ("active", "paused"):
        return ""
    return json.dumps({"params": task.params, "split": task.split})


def _equal(columns: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Condition]:
    return [columns[name] == value for name, value in wanted.items() if value not in (None, "")]


def _not_ours(cursor: str) -> InputError:
    return InputError(f"cursor: given {cursor!r}, expected a next_cursor of ours")


def _page(session: Session, query: Select[_Row], limit: int) -> tuple[list[_Row], _Row | None]:
    """At most `limit` rows, and the last of them if there are more."""
    rows = list(session.scalars(query.limit(limit + 1)))
    return rows[:limit], rows[limit - 1] if len(rows) > limit else None


def _in_time(query: Select[ProposalRow]) -> Select[ProposalRow]:
    return query.order_by(ProposalRow.created_at, ProposalRow.id)


def _measurements(session: Session, wanted: Condition) -> list[tuple[str, Measurement]]:
    """(task version, measurement) in time."""
    in_time = (MeasurementRow.policy_version, MeasurementRow.step, MeasurementRow.group_id)
    rows = session.scalars(select(MeasurementRow).where(wanted).order_by(*in_time))
    return [(row.task_id, Measurement.model_validate(row, from_attributes=True)) for row in rows]


def _changes(session: Session, wanted: Condition) -> tuple[AuditEntry, ...]:
    rows = session.scalars(select(AuditRow).where(wanted).order_by(AuditRow.id))
    return tuple(AuditEntry.model_validate(row, from_attributes=True) for row in rows)
