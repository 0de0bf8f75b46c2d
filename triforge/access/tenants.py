"""Who shares a deployment, and how much of it they may take.

Bounds are looked at in the transaction that would pass them, with the tenant's row held, so two requests at once cannot
both take the last place.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from triforge.errors import InputError, QuotaError
from triforge.store.database import Database
from triforge.store.tables import AuditRow, PoolRow, RunRow, TaskRow, TenantRow

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_UNFINISHED: Final = ("queued", "running", "stopping")
BOUNDS: Final = ("max_pools", "max_tasks", "max_runs", "requests_per_minute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant and its bounds; None is no bound.

    Attributes:
        max_pools: pools that are not retired.
        max_tasks: tasks in pools that are not retired; versions of a task count once.
        max_runs: runs that are queued or running.
        requests_per_minute: over all keys and services.
    """

    name: str
    created_at: float
    max_pools: int | None = None
    max_tasks: int | None = None
    max_runs: int | None = None
    requests_per_minute: int | None = None


def demand_name(tenant: str) -> None:
    """Raises InputError when this is no name of a tenant."""
    if _NAME.fullmatch(tenant) is None:
        raise InputError(
            f"tenant: given {tenant[:80]!r}, expected small letters, digits and hyphens, 63 at most"
        )


def hold_tenant(session: Session, tenant: str, *, now: float | None = None) -> TenantRow:
    """Hold a tenant until the end of the transaction; it is made, at `now`, if it is not there."""
    query = select(TenantRow).where(TenantRow.name == tenant).with_for_update()
    row = session.scalars(query).one_or_none()
    if row is None:
        row = TenantRow(name=tenant, created_at=time.time() if now is None else now)
        session.add(row)
        session.flush()
    return row


class TenantStore:
    """The tenants of a deployment.

    Args:
        database: at head.
        clock: seconds since 1970.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def tenants(self) -> list[Tenant]:
        """All tenants by name."""
        with self._database.read() as session:
            return [
                _tenant(row) for row in session.scalars(select(TenantRow).order_by(TenantRow.name))
            ]

    def set(self, tenant: str, *, by: str = "", **bounds: int | None) -> Tenant:
        """Make a tenant if there is none, and set some of its bounds; -1 takes a bound away.

        Args:
            tenant: its name.
            by: who does it, for the record.
            bounds: those of `BOUNDS` that change; None leaves one as it is.

        Raises:
            InputError: the name or a bound is impossible.
        """
        demand_name(tenant)
        for name, value in bounds.items():
            if value is not None and not -1 <= value < 2**31:
                raise InputError(f"{name}: given {value}, expected 0 or more, or -1 for no bound")
        with self._database.write() as session:
            now = self._clock()
            row = hold_tenant(session, tenant, now=now)
            wanted = {name: value for name, value in bounds.items() if value is not None}
            before = {name: getattr(row, name) for name in wanted}
            for name, value in wanted.items():
                setattr(row, name, None if value < 0 else value)
            after = {name: getattr(row, name) for name in wanted}
            session.add(
                AuditRow(
                    at=now, by=by, action="tenant.set", subject=tenant, pool_id=None, reason="",
                    detail={"before": before, "after": after}, tenant=tenant, service="triforge tenant",
                )
            )  # fmt: skip
            return _tenant(row)


def demand_service_for_pool(session: Session, tenant: str, tasks: int) -> None:
    """Raises QuotaError when a further pool of so many tasks is more than the tenant may have."""
    row = hold_tenant(session, tenant)
    open_ = (PoolRow.tenant == tenant, PoolRow.state != "retired")
    if row.max_pools is not None:
        pools = session.scalar(select(func.count()).select_from(PoolRow).where(*open_)) or 0
        _demand(tenant, "max_pools", row.max_pools, pools, 1, "retire a pool")
    if row.max_tasks is not None:
        roots = select(func.count()).select_from(TaskRow).join(PoolRow)
        held = session.scalar(roots.where(*open_, TaskRow.version == 0)) or 0
        _demand(tenant, "max_tasks", row.max_tasks, held, tasks, "retire a pool")


def demand_service_for_run(session: Session, tenant: str) -> None:
    """Raises QuotaError when the tenant has as many unfinished runs as it may have."""
    row = hold_tenant(session, tenant)
    if row.max_runs is not None:
        query = select(func.count()).select_from(RunRow)
        runs = session.scalar(query.where(RunRow.tenant == tenant, RunRow.status.in_(_UNFINISHED)))
        _demand(
            tenant, "max_runs", row.max_runs, runs or 0, 1, "wait for a run to end, or stop one"
        )


def _demand(tenant: str, quota: str, bound: int, held: int, more: int, mend: str) -> None:
    if held + more > bound:
        option = quota.replace("_", "-")
        raise QuotaError(
            f"tenant {tenant} holds {held} and asks for {more} more, {quota} is {bound}: {mend}, or let the operator "
            f"raise it (`triforge tenant set {tenant} --{option} N`)"
        )


def _tenant(row: TenantRow) -> Tenant:
    return Tenant(
        name=row.name,
        created_at=row.created_at,
        max_pools=row.max_pools,
        max_tasks=row.max_tasks,
        max_runs=row.max_runs,
        requests_per_minute=row.requests_per_minute,
    )
