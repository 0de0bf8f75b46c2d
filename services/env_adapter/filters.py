"""What lists are narrowed by, as conditions on rows; and the cursors that name a place in them."""

from __future__ import annotations

import re
from typing import Any, TypedDict

from sqlalchemy import ColumnElement, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from triforge.errors import InputError
from triforge.store.tables import AuditRow, PoolRow, ProposalRow, TaskRow
from triforge.types import Approval, Direction, PoolStatus, ProposalState, Split, TaskState


class PoolFilter(TypedDict, total=False):
    """Pools by what they are; `search` is a part of the name. None asks for all, here and below."""

    state: PoolStatus | None
    approval: Approval | None
    environment: str | None
    search: str | None


class TaskFilter(TypedDict, total=False):
    """Task versions by what they are; `search` is a part of the instruction."""

    state: TaskState | None
    split: Split | None
    slot: str | None
    kind: str | None
    version: int | None
    pinned: bool | None
    search: str | None


class ProposalFilter(TypedDict, total=False):
    """Rewrites by what they are."""

    state: ProposalState | None
    run_id: str | None
    slot: str | None
    direction: Direction | None


def pool_cursor(row: PoolRow) -> str:
    """The place after a pool in a list by name."""
    return f"{row.name}/{row.id}"


def after_pool(cursor: str) -> list[ColumnElement[bool]]:
    """The condition that leaves what comes after the cursor; a name alone is a place as well."""
    if not cursor:
        return []
    name, _, id_ = cursor.partition("/")
    return [tuple_(PoolRow.name, PoolRow.id) > (name, id_)] if id_ else [PoolRow.name > name]


def after_entry(cursor: str) -> list[ColumnElement[bool]]:
    """Likewise for the record, whose entries are numbered.

    Raises:
        InputError: the cursor is none of ours.
    """
    if not cursor:
        return []
    if re.fullmatch("[0-9]{1,18}", cursor) is None:
        raise no_cursor(cursor)
    return [AuditRow.id > int(cursor)]


def of_pools(wanted: PoolFilter) -> list[ColumnElement[bool]]:
    """The conditions."""
    columns = {"state": PoolRow.state, "approval": PoolRow.approval, "environment": PoolRow.family}
    return _equal(columns, wanted) + _part(PoolRow.name, wanted.get("search"))


def of_tasks(pool_id: str, wanted: TaskFilter) -> list[ColumnElement[bool]]:
    """The conditions, that the pool is this one among them."""
    columns: dict[str, Any] = {
        "state": TaskRow.state,
        "split": TaskRow.split,
        "slot": TaskRow.slot,
        "kind": TaskRow.kind,
        "version": TaskRow.version,
        "pinned": TaskRow.pinned,
    }
    found = _equal(columns, wanted) + _part(TaskRow.instruction, wanted.get("search"))
    return [TaskRow.pool_id == pool_id, *found]


def of_proposals(pool_id: str, wanted: ProposalFilter) -> list[ColumnElement[bool]]:
    """The conditions, that the pool is this one among them."""
    columns: dict[str, Any] = {
        "state": ProposalRow.state,
        "run_id": ProposalRow.run_id,
        "slot": ProposalRow.slot,
        "direction": ProposalRow.document["direction"].as_string(),
    }
    return [ProposalRow.pool_id == pool_id, *_equal(columns, wanted)]


def after_task(cursor: str) -> ColumnElement[bool]:
    """Behind the place that `task_cursor` named.

    Raises:
        InputError: the cursor is none of ours.
    """
    found = re.fullmatch(r"(train|heldout)\.([0-9]{1,9})\.([0-9]{1,9})", cursor)
    if found is None:
        raise no_cursor(cursor)
    place = (found[1], int(found[2]), int(found[3]))
    return tuple_(TaskRow.split, TaskRow.position, TaskRow.version) > place


def task_cursor(row: TaskRow) -> str:
    """The place of a version in its pool's list."""
    return f"{row.split}.{row.position}.{row.version}"


def no_cursor(cursor: str) -> InputError:
    """What is said to who brings another cursor than ours."""
    return InputError(f"cursor: given {cursor!r}, expected a next_cursor of ours")


def _equal(columns: dict[str, Any], wanted: Any) -> list[ColumnElement[bool]]:
    return [
        column == wanted[name]
        for name, column in columns.items()
        if wanted.get(name) not in (None, "")
    ]


def _part(column: InstrumentedAttribute[str], text: str | None) -> list[ColumnElement[bool]]:
    return [column.icontains(text, autoescape=True)] if text else []
