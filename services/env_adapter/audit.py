"""The record of what people change: one row a change, in the transaction of the change, only ever added to.

Requests for changes stand in the same table, see `triforge.access.requests`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from triforge.access.callers import caller
from triforge.store.tables import AuditRow
from triforge.types import AuditEntry, Change, RecordEntry


def record(
    session: Session,
    action: str,
    subject: str,
    *,
    pool_id: str,
    who: Change,
    detail: Mapping[str, Any],
    slot: str | None = None,
) -> None:
    """Write down one change.

    Args:
        session: the transaction that makes the change.
        action: the thing and the verb, for example `task.pin`.
        subject: id of the thing.
        pool_id: the pool it belongs to.
        who: who did it and why, as far as they said.
        detail: what was there before and after.
        slot: the slot it belongs to, if it belongs to one.
    """
    asking = caller()
    session.add(
        AuditRow(
            at=time.time(),
            tenant=asking.tenant,
            key_id=asking.key_id,
            by=who.by or asking.name,
            action=action,
            subject=subject,
            pool_id=pool_id,
            slot=slot,
            reason=who.reason,
            detail=dict(detail),
        )
    )


def entries(
    session: Session, wanted: Iterable[ColumnElement[bool]], *, limit: int | None = None
) -> list[AuditEntry]:
    """Changes that meet the conditions, oldest first."""
    rows = session.scalars(select(AuditRow).where(*wanted).order_by(AuditRow.id).limit(limit))
    return [
        AuditEntry.model_validate({name: getattr(row, name) for name in AuditEntry.model_fields})
        for row in rows
    ]


def whole(
    session: Session, wanted: Iterable[ColumnElement[bool]], *, limit: int
) -> list[RecordEntry]:
    """Rows of the whole record that meet the conditions, oldest first."""
    rows = session.scalars(select(AuditRow).where(*wanted).order_by(AuditRow.id).limit(limit))
    return [
        RecordEntry.model_validate({name: getattr(row, name) for name in RecordEntry.model_fields})
        for row in rows
    ]
