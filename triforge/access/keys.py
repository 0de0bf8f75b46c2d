"""Tenants and their bounds, and API keys: `tfk_<id>_<secret>`.

The secret is 32 random bytes and is shown once; the database keeps its SHA-256. A slow hash is for secrets that people
choose: nobody can try 2^256 of them, and a slow hash a request would exhaust a service. Bounds are checked in the
transaction that would pass them, with the tenant's row locked, so two requests at once cannot both take the last place.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from triforge.access.callers import SCOPES, KeyScope
from triforge.errors import InputError, NotFoundError, QuotaError
from triforge.store.database import Database
from triforge.store.tables import AuditRow, KeyRow, PoolRow, RunRow, TaskRow, TenantRow

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FORM: Final = re.compile(r"tfk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_DAY_S: Final = 86_400.0
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
    """The tenants of a deployment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tenants(self) -> list[Tenant]:
        """All tenants by name."""
        with self._database.read() as session:
            return [_tenant(r) for r in session.scalars(select(TenantRow).order_by(TenantRow.name))]

    def set(self, tenant: str, *, by: str = "", **bounds: int | None) -> Tenant:
        """Make a tenant if there is none, and set some of its `BOUNDS`: -1 takes a bound away, None leaves it as it is."""
        demand_name(tenant)
        for name, value in bounds.items():
            if value is not None and not -1 <= value < 2**31:
                raise InputError(f"{name}: given {value}, expected 0 or more, or -1 for no bound")
        with self._database.write() as session:
            now = time.time()
            row = hold_tenant(session, tenant, now=now)
            wanted = {name: value for name, value in bounds.items() if value is not None}
            before = {name: getattr(row, name) for name in wanted}
            for name, value in wanted.items():
                setattr(row, name, None if value < 0 else value)
            after = {name: getattr(row, name) for name in wanted}
            session.add(
                AuditRow(
                    at=now, by=by, action="tenant.set", subject=tenant, reason="", tenant=tenant,
                    detail={"before": before, "after": after}, service="triforge tenant",
                )
            )  # fmt: skip
            return _tenant(row)


def check_pool_quota(session: Session, tenant: str, tasks: int) -> None:
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


def check_run_quota(session: Session, tenant: str) -> None:
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
    return Tenant(**{field.name: getattr(row, field.name) for field in fields(Tenant)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What is known of a key; its secret is not."""

    id: str
    tenant: str
    name: str
    scope: KeyScope
    digest: str
    created_at: float
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None
    requests_per_minute: int | None = None  # of its tenant

    def opens(self, secret: str) -> bool:
        """Whether the secret is the key's; takes as long whatever it is."""
        return hmac.compare_digest(self.digest, digest(secret))


def digest(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def split(text: str) -> tuple[str, str] | None:
    """(id, secret) of a key as people hold it, or None if it is none."""
    found = _FORM.fullmatch(text)
    return (found[1], found[2]) if found else None


class KeyStore:
    """The keys of a deployment."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def create(
        self, name: str, *, scope: str, tenant: str, days: float | None = None, by: str = ""
    ) -> tuple[Key, str]:
        """Make a key, and its tenant if there is none; its text is returned with it and is kept nowhere. `days` None is for ever."""
        if scope not in SCOPES:
            raise InputError(f"scope: given {scope!r}, allowed {', '.join(SCOPES)}")
        if not 1 <= len(name) <= 200 or not name.isprintable():
            raise InputError(f"name: given {name!r}, expected 1 to 200 printable characters")
        if days is not None and not 0 < days <= 36_500:
            raise InputError(f"days: given {days:g}, expected more than 0 and at most 36500")
        demand_name(tenant)
        id_, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), self._clock()
        with self._database.write() as session:
            hold_tenant(session, tenant, now=now)
            expires_at = None if days is None else now + days * _DAY_S
            row = KeyRow(
                id=id_, tenant=tenant, name=name, scope=scope, digest=digest(secret), created_at=now, expires_at=expires_at
            )  # fmt: skip
            session.add(row)
            self._record(session, "key.create", row, by)
            return _key(row), f"tfk_{id_}_{secret}"

    def all(self, *, tenant: str | None = None) -> list[Key]:
        """All keys, or a tenant's, oldest first."""
        query = select(KeyRow).order_by(KeyRow.created_at, KeyRow.id)
        if tenant is not None:
            query = query.where(KeyRow.tenant == tenant)
        with self._database.read() as session:
            return [_key(row) for row in session.scalars(query)]

    def revoke(self, key_id: str, *, by: str = "") -> Key:
        """End a key for good; NotFoundError if there is none. Ending it twice is the same as once."""
        with self._database.write() as session:
            row = session.get(KeyRow, key_id)
            if row is None:
                raise NotFoundError(f"key {key_id!r} does not exist; `triforge key list` lists all")
            if row.revoked_at is None:
                row.revoked_at = self._clock()
                self._record(session, "key.revoke", row, by)
            return _key(row)

    def find(self, key_id: str) -> Key | None:
        """The key with its tenant's rate, or None."""
        query = select(KeyRow, TenantRow.requests_per_minute).join(
            TenantRow, TenantRow.name == KeyRow.tenant
        )
        with self._database.read() as session:
            found = session.execute(query.where(KeyRow.id == key_id)).one_or_none()
            return None if found is None else _key(*found)

    def touch(self, key_id: str) -> None:
        """Note that a key is used now."""
        used = update(KeyRow).where(KeyRow.id == key_id).values(last_used_at=self._clock())
        with self._database.write() as session:
            session.execute(used)

    def _record(self, session: Session, action: str, row: KeyRow, by: str) -> None:
        session.add(
            AuditRow(
                at=self._clock(), by=by, action=action, subject=row.id, reason="", tenant=row.tenant,
                detail={"name": row.name, "scope": row.scope}, service="triforge key",
            )
        )  # fmt: skip


def _key(row: KeyRow, requests_per_minute: int | None = None) -> Key:
    known: dict[str, Any] = {field.name: getattr(row, field.name, None) for field in fields(Key)}
    return Key(**known | {"requests_per_minute": requests_per_minute})
