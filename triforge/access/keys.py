"""Keys: `tfk_<id>_<secret>` of people, `tfs_<session>_<secret>` of sessions.

The secret is 32 random bytes and is shown once; the database keeps its SHA-256. A slow hash would protect secrets that people
choose; 2^256 random ones cannot be searched, and a slow hash for each request would exhaust a service.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from triforge.access.callers import SCOPES, KeyScope
from triforge.errors import InputError, NotFoundError
from triforge.store.database import Database
from triforge.store.tables import KeyRow, TenantRow

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FORM: Final = re.compile(r"(tf[ks])_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_DAY_S: Final = 86_400.0
_KeyKind = Literal["tfk", "tfs"]


def digest(secret: str) -> str:
    """Return what the database keeps of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_key(kind: _KeyKind, owner_id: str) -> tuple[str, str]:
    """Return the text of a new key and the digest of its secret."""
    secret = secrets.token_urlsafe(32)
    return f"{kind}_{owner_id}_{secret}", digest(secret)


def parse_key(kind: _KeyKind, text: str) -> tuple[str, str] | None:
    """Return (id, secret) of a key's text, or None if it has another form."""
    match = _FORM.fullmatch(text.strip())
    return (match[2], match[3]) if match and match[1] == kind else None


def key_of(authorization: str, x_api_key: str = "") -> str:
    """Return the key in a request's headers: OpenAI clients send a bearer token, Anthropic clients `x-api-key`."""
    scheme, _, text = authorization.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else x_api_key.strip()


def require_tenant_name(tenant: str) -> None:
    """Raise InputError unless this can be the name of a tenant."""
    if _NAME.fullmatch(tenant) is None:
        raise InputError(
            f"tenant: given {tenant[:80]!r}, expected small letters, digits and hyphens, 63 at most"
        )


def hold_tenant(session: Session, tenant: str) -> TenantRow:
    """Lock a tenant's row until the end of the transaction; make it if it is missing."""
    query = select(TenantRow).where(TenantRow.name == tenant).with_for_update()
    row = session.scalars(query).one_or_none()
    if row is None:
        row = TenantRow(name=tenant, created_at=time.time())
        session.add(row)
        session.flush()
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    scope: KeyScope
    digest: str
    created_at: float
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None

    def opens(self, secret: str) -> bool:
        """Return whether the secret is the key's, in constant time."""
        return hmac.compare_digest(self.digest, digest(secret))


class KeyStore:
    """The keys of a deployment."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def create(
        self, name: str, *, scope: str, tenant: str, days: float | None = None
    ) -> tuple[Key, str]:
        """Make a key, and its tenant if that is missing; return it with its text. `days` None never expires."""
        if scope not in SCOPES:
            raise InputError(f"scope: given {scope!r}, allowed {', '.join(SCOPES)}")
        if not 1 <= len(name) <= 200 or not name.isprintable():
            raise InputError(f"name: given {name!r}, expected 1 to 200 printable characters")
        if days is not None and not 0 < days <= 36_500:
            raise InputError(f"days: given {days:g}, expected more than 0 and at most 36500")
        require_tenant_name(tenant)
        key_id, now = secrets.token_hex(6), self._clock()
        text, kept = new_key("tfk", key_id)
        with self._database.write() as session:
            hold_tenant(session, tenant)
            expires_at = None if days is None else now + days * _DAY_S
            row = KeyRow(
                id=key_id, tenant=tenant, name=name, scope=scope, digest=kept, created_at=now, expires_at=expires_at
            )  # fmt: skip
            session.add(row)
            return _key(row), text

    def all(self, *, tenant: str | None = None) -> list[Key]:
        """Return all keys, or a tenant's, oldest first."""
        query = select(KeyRow).order_by(KeyRow.created_at, KeyRow.id)
        if tenant is not None:
            query = query.where(KeyRow.tenant == tenant)
        with self._database.read() as session:
            return [_key(row) for row in session.scalars(query)]

    def revoke(self, key_id: str) -> Key:
        """Revoke a key for good; a second call changes nothing. NotFoundError if it does not exist."""
        with self._database.write() as session:
            row = session.get(KeyRow, key_id)
            if row is None:
                raise NotFoundError(f"key {key_id!r} does not exist; `triforge key list` lists all")
            if row.revoked_at is None:
                row.revoked_at = self._clock()
            return _key(row)

    def find(self, key_id: str) -> Key | None:
        """Return the key, or None."""
        with self._database.read() as session:
            row = session.get(KeyRow, key_id)
            return None if row is None else _key(row)

    def touch(self, key_id: str) -> None:
        """Store that a key is used now."""
        used = update(KeyRow).where(KeyRow.id == key_id).values(last_used_at=self._clock())
        with self._database.write() as session:
            session.execute(used)


def _key(row: KeyRow) -> Key:
    return Key(**{field.name: getattr(row, field.name) for field in fields(Key)})
