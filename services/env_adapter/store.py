"""What the service keeps in SQL, as it is read: pages with cursors and filters, details, lineage, exports.

Synchronous and safe under several processes, as are the writers (`pools`, `plans`, `changes`, `adaptation.measurement`);
APIs call them in threads. A filter that is None or empty asks for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.orm import Session

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
from triforge.errors import InputError
from triforge.store.database import Database
from triforge.store.tables import AuditRow, MeasurementRow, PoolRow, ProposalRow, TaskRow
from triforge.types import (
    AuditEntry,
    AuditPage,
    Lineage,
    LineageVersion,
    Measurement,
    PoolPage,
    PoolState,
    Proposal,
    ProposalDetail,
    ProposalPage,
    RecordEntry,
    RecordPage,
    Split,
    Task,
    TaskDetail,
    TaskPage,
)

Condition = ColumnElement[bool]
Content = Literal["tasks", "versions", "proposals"]

_IN_TIME = (MeasurementRow.policy_version, MeasurementRow.step, MeasurementRow.group_id)
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
    """Reads pools, tasks, lineage, proposals and the record. What does not exist raises NotFoundError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pools(
        self, *, cursor: str = "", limit: int = 100, search: str = "", **wanted: Any
    ) -> PoolPage:
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
            rows = session.scalars(query.limit(limit + 1)).all()
            page = rows[:limit]
            more = f"{page[-1].name}/{page[-1].id}" if len(rows) > limit else None
            return PoolPage(pools=tuple(pool_states(session, page)), next_cursor=more)

    def pool(self, pool: str) -> PoolState:
        """A pool with its counts, by id or name."""
        with self._database.read() as session:
            return pool_states(session, [pool_row(session, pool)])[0]

    def tasks(
        self, pool: str, *, cursor: str = "", limit: int = 100, search: str = "", **wanted: Any
    ) -> TaskPage:
        """Task versions of a pool by split, position, version; `search` is a part of the instruction.

        Raises:
            InputError: the cursor is none of ours.
        """
        with self._database.read() as session:
            owner = pool_row(session, pool)
            conditions = [TaskRow.pool_id == owner.id, *_equal(_TASK_FILTERS, wanted)]
            if search:
                conditions.append(TaskRow.instruction.icontains(search, autoescape=True))
            if cursor:
                conditions.append(_after_task(cursor))
            query = select(TaskRow).where(*conditions)
            query = query.order_by(TaskRow.split, TaskRow.position, TaskRow.version)
            rows = session.scalars(query.limit(limit + 1)).all()
            page = rows[:limit]
            more = None
            if len(rows) > limit:
                more = f"{page[-1].split}.{page[-1].position}.{page[-1].version}"
            return TaskPage(
                tasks=tuple(task_of(row, owner.family) for row in page), next_cursor=more
            )

    def task(self, task_id: str) -> Task:
        """A task version."""
        with self._database.read() as session:
            return task_in(session, task_id)

    def detail(self, task_id: str) -> TaskDetail:
        """A task version with its measurements."""
        with self._database.read() as session:
            task = task_in(session, task_id)
            found = _measurements(session, MeasurementRow.task_id == task_id)
            return TaskDetail(task=task, measurements=tuple(m for _, m in found))

    def lineage(self, task_id: str) -> Lineage:
        """The tree of the slot that a version belongs to."""
        with self._database.read() as session:
            task = task_in(session, task_id)
            rows = session.scalars(
                select(TaskRow).where(TaskRow.slot == task.slot).order_by(TaskRow.version)
            ).all()
            proposals = _proposals(session, [ProposalRow.slot == task.slot])
            wanted = MeasurementRow.task_id.in_([row.id for row in rows])
            measured = _measurements(session, wanted)
            changes = _changes(session, [AuditRow.slot == task.slot])
        return Lineage(
            slot=task.slot,
            pool_id=task.pool_id,
            active_id=next((row.id for row in rows if row.state == "active"), None),
            changes=tuple(changes),
            versions=tuple(
                LineageVersion(
                    task=task_of(row, task.family),
                    made_by=next((p for p in proposals if p.candidate_id == row.id), None),
                    measurements=tuple(m for id_, m in measured if id_ == row.id),
                    children=tuple(child.id for child in rows if child.parent_id == row.id),
                    attempts=tuple(
                        p for p in proposals if p.parent_id == row.id and p.candidate_id is None
                    ),
                )
                for row in rows
            ),
        )

    def slot_tag(self, task_id: str) -> str:
        """The entity tag of what people change about the slot of a version."""
        with self._database.read() as session:
            return slot_tag(current(session, task_row(session, task_id).slot))

    def proposals(
        self, pool: str, *, cursor: str = "", limit: int = 100, **wanted: Any
    ) -> ProposalPage:
        """Rewrites of a pool, oldest first.

        Raises:
            InputError: the cursor is none of ours.
        """
        with self._database.read() as session:
            owner = pool_row(session, pool)
            conditions = [ProposalRow.pool_id == owner.id, *_equal(_PROPOSAL_FILTERS, wanted)]
            if cursor:
                last = session.get(ProposalRow, cursor)
                if last is None:
                    raise _not_ours(cursor)
                place = tuple_(ProposalRow.created_at, ProposalRow.id)
                conditions.append(place > (last.created_at, last.id))
            found = _proposals(session, conditions, limit=limit + 1)
        more = found[limit - 1].id if len(found) > limit else None
        return ProposalPage(proposals=tuple(found[:limit]), next_cursor=more)

    def proposal(self, proposal_id: str) -> ProposalDetail:
        """A rewrite with its measurements and what people did about it."""
        with self._database.read() as session:
            row = proposal_row(session, proposal_id)
            measured = _measurements(session, MeasurementRow.proposal_id == row.id)
            return ProposalDetail(
                proposal=proposal_of(row),
                measurements=tuple(m for _, m in measured),
                changes=tuple(_changes(session, [AuditRow.subject == row.id])),
            )

    def changes(
        self, pool: str, *, slot: str = "", cursor: str = "", limit: int = 100
    ) -> AuditPage:
        """What people changed about a pool, oldest first.

        Raises:
            InputError: the cursor is none of ours.
        """
        with self._database.read() as session:
            wanted = [AuditRow.pool_id == pool_row(session, pool).id, *_after_entry(cursor)]
            if slot:
                wanted.append(AuditRow.slot == slot)
            found = _changes(session, wanted, limit=limit + 1)
        more = str(found[limit - 1].id) if len(found) > limit else None
        return AuditPage(changes=tuple(found[:limit]), next_cursor=more)

    def record(
        self, *, service: str = "", key_id: str = "", cursor: str = "", limit: int = 100
    ) -> RecordPage:
        """Everything on record about the caller's tenant, oldest first; all of it for who sees all tenants.

        Raises:
            InputError: the cursor is none of ours.
        """
        columns = {"service": AuditRow.service, "key_id": AuditRow.key_id}
        wanted = [
            *own(AuditRow.tenant),
            *_after_entry(cursor),
            *_equal(columns, {"service": service, "key_id": key_id}),
        ]
        query = select(AuditRow).where(*wanted).order_by(AuditRow.id).limit(limit + 1)
        with self._database.read() as session:
            found = [
                RecordEntry.model_validate(_fields(row, RecordEntry.model_fields))
                for row in session.scalars(query)
            ]
        more = str(found[limit - 1].id) if len(found) > limit else None
        return RecordPage(entries=tuple(found[:limit]), next_cursor=more)

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
                lines = [proposal.model_dump_json() for proposal in page.proposals]
                cursor = page.next_cursor
            else:
                tasks = self.tasks(pool, split=split, cursor=cursor, limit=_EXPORT_PAGE)
                lines = [_exported(task, content) for task in tasks.tasks]
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


def _after_task(cursor: str) -> Condition:
    found = re.fullmatch(r"(train|heldout)\.([0-9]{1,9})\.([0-9]{1,9})", cursor)
    if found is None:
        raise _not_ours(cursor)
    place = (found[1], int(found[2]), int(found[3]))
    return tuple_(TaskRow.split, TaskRow.position, TaskRow.version) > place


def _after_entry(cursor: str) -> list[Condition]:
    if not cursor:
        return []
    if re.fullmatch("[0-9]{1,18}", cursor) is None:
        raise _not_ours(cursor)
    return [AuditRow.id > int(cursor)]


def _not_ours(cursor: str) -> InputError:
    return InputError(f"cursor: given {cursor!r}, expected a next_cursor of ours")


def _proposals(
    session: Session, wanted: Iterable[Condition], *, limit: int | None = None
) -> list[Proposal]:
    query = select(ProposalRow).where(*wanted).order_by(ProposalRow.created_at, ProposalRow.id)
    return [proposal_of(row) for row in session.scalars(query.limit(limit))]


def _measurements(session: Session, wanted: Condition) -> list[tuple[str, Measurement]]:
    """(task version, measurement) in time."""
    rows = session.scalars(select(MeasurementRow).where(wanted).order_by(*_IN_TIME))
    return [(row.task_id, measurement_of(row)) for row in rows]


def _changes(
    session: Session, wanted: Sequence[Condition], *, limit: int | None = None
) -> list[AuditEntry]:
    rows = session.scalars(select(AuditRow).where(*wanted).order_by(AuditRow.id).limit(limit))
    return [AuditEntry.model_validate(_fields(row, AuditEntry.model_fields)) for row in rows]


def _fields(row: AuditRow, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
