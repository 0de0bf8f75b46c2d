"""What people change by hand, and the record of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from triforge.types.base import Approval, Message, Params

Name = Annotated[str, Field(max_length=200)]
Reason = Annotated[str, Field(max_length=2000)]


class Change(Message):
    """Who changes something and why; both may be left out, and so may the whole body.

    Produced by: people. Consumed by: env_adapter (`POST` of pause, resume, retire, pin, unpin, approve, reject).
    """

    by: Name = ""
    reason: Reason = ""


class PoolChange(Message):
    """Change the settings of a pool. Produced by: people. Consumed by: env_adapter (`PATCH /v1/pools/{pool}`).

    Candidates that wait for a person when `approval` becomes "automatic" go on waiting for one.
    """

    approval: Approval
    by: Name = ""
    reason: Reason = ""


class Rollback(Message):
    """Undo rewrites. Produced by: people. Consumed by: env_adapter (`POST /v1/tasks/{id}/rollback`).

    `to` is an ancestor of the version that the slot plays.
    """

    to: Annotated[str, Field(min_length=1, max_length=64)]
    by: Name = ""
    reason: Reason = ""


class AuditEntry(Message):
    """One change. Produced by: env_adapter. Consumed by: people.

    `action` is the thing and the verb, for example `task.pin`; `subject` the id of the thing; `detail` what was there
    before and after. `by` is empty when nobody said who it was.
    """

    id: int
    at: float
    by: str
    action: str
    subject: str
    pool_id: str
    slot: str | None = None
    reason: str = ""
    detail: Params = Field(default_factory=dict)


class RecordEntry(Message):
    """One row of the whole record. Produced by: every service, the commands for keys and tenants, `triforge restore`. Consumed by: people.

    A request for a change has the `service` that was asked, the `address` that asked, the route as `action`, its path as
    `subject` and the `status` that it was answered with; it is there whatever came of it. Other rows are the changes
    themselves, as in `AuditEntry`. `tenant`, `key_id` and `by` say who; `tenant` is empty where the gate let nobody in.
    """

    id: int
    at: float
    tenant: str
    key_id: str
    by: str
    service: str
    action: str
    subject: str
    address: str
    status: int | None = None
    pool_id: str | None = None
    reason: str = ""
    detail: Params = Field(default_factory=dict)


class RecordPage(Message):
    """The record, oldest first. Produced by: env_adapter (`GET /v1/audit`)."""

    entries: tuple[RecordEntry, ...]
    next_cursor: str | None = None


class AuditPage(Message):
    """Changes to a pool, oldest first. Produced by: env_adapter (`GET /v1/pools/{id}/audit`)."""

    changes: tuple[AuditEntry, ...]
    next_cursor: str | None = None
