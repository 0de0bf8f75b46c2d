"""The checks of each request: key, scope, and the version of the client.

Each process reads a key from the database once in `KNOWN_S` seconds, so the revocation of a key takes effect within
that time. The secret of the deployment's own services needs no database: training continues while it is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import re
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final

from triforge import __version__
from triforge.access.callers import OPERATOR, SCOPES, UNRESTRICTED, Caller, Requirement
from triforge.access.exposure import require_safe
from triforge.access.keys import Key, KeyStore, key_of, parse_key, require_tenant_name
from triforge.config import Settings
from triforge.errors import (
    BusyError,
    ForbiddenError,
    StorageError,
    UnauthorizedError,
    UnavailableError,
    VersionError,
)
from triforge.store.database import Database

KNOWN_S: Final = 5.0
_WAITING: Final = 1000  # most unknown ids that wait to be looked up
_LOOKUPS: Final = 2  # unknown ids that are looked up at a time
_TOUCH_S: Final = 60.0  # accuracy of a key's last use
SERVICE: Final = Caller(name="service", tenant=OPERATOR, everything=True)
STRANGER: Final = Caller(tenant="", scope="read")  # sees no rows
_log = logging.getLogger(__name__)


class KeyCache:
    """Keys by id, each remembered for `KNOWN_S` seconds.

    Unknown ids are looked up a few at a time, and keys that were known before do not wait for them: requests with invented
    keys cost the database little and delay no caller.
    """

    def __init__(self, store: KeyStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[float, Key]] = {}  # with the time until which it is current
        self._lookups: dict[str, asyncio.Task[Key | None]] = {}
        self._slots = asyncio.Semaphore(_LOOKUPS)

    async def find(self, key_id: str) -> Key | None:
        """Return the key, at most `KNOWN_S` seconds old. Concurrent calls share one lookup.

        Raises:
            BusyError: too many unknown ids wait to be looked up.
            UnavailableError: the database does not answer, and the key is not remembered.
        """
        until, key = self._known.get(key_id, (-math.inf, None))
        if until > self._clock():
            return key
        if key_id not in self._lookups:
            if key is None and len(self._lookups) >= _WAITING:
                raise BusyError(
                    "many unknown keys are being looked up; ask again", retry_after_s=1.0
                )
            slot = self._slots if key is None else contextlib.nullcontext()
            self._lookups[key_id] = asyncio.create_task(self._look_up(key_id, slot))
        return await asyncio.shield(self._lookups[key_id])

    async def _look_up(
        self, key_id: str, slot: AbstractAsyncContextManager[Any, Any]
    ) -> Key | None:
        try:
            async with slot:
                until = self._clock() + KNOWN_S
                key = await asyncio.to_thread(self._store.find, key_id)
        finally:
            del self._lookups[key_id]
        if key is not None:
            self._known[key_id] = until, key
        return key

    async def touch(self, key: Key) -> None:
        """Store that the key is used; a failure is logged only."""
        try:
            await asyncio.to_thread(self._store.touch, key.id)
        except (UnavailableError, StorageError) as error:
            _log.warning("the last use of key %s was not stored: %s", key.id, error.detail)


class Gate:
    """The checks of an API; without `keys` every caller passes."""

    def __init__(
        self,
        keys: KeyCache | None,
        *,
        service_secret: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._secret = service_secret.encode()
        self._clock = clock
        self._touching: set[asyncio.Task[None]] = set()
        self._touched: dict[str, float] = {}

    @classmethod
    def from_settings(cls, settings: Settings, database: Database | None) -> Gate:
        """Return the gate of a service; the database is needed where keys are required. Raises as `require_safe`."""
        require_safe(settings)
        if not settings.keyed:
            return cls(None)
        assert database is not None
        secret = settings.service_secret.get_secret_value()
        return cls(KeyCache(KeyStore(database)), service_secret=secret)

    @property
    def keyed(self) -> bool:
        """Whether keys are required."""
        return self._keys is not None

    def is_service(self, authorization: bytes) -> bool:
        """Return whether this Authorization header comes from one of the deployment's own services."""
        return (
            self._keys is not None
            and bool(self._secret)
            and hmac.compare_digest(authorization, b"Bearer " + self._secret)
        )

    async def identify(
        self, authorization: bytes, *, tenant: str = "", public: bool = False
    ) -> Caller:
        """Return the caller of a request.

        Args:
            tenant: for which a service or an operator acts; all others act for their own, whatever they name.
            public: whether the route needs no key.

        Raises:
            UnauthorizedError: no key, or an invalid one.
            UnavailableError: the keys cannot be looked up.
        """
        if self._keys is None:
            return UNRESTRICTED
        if public:
            return STRANGER
        if self.is_service(authorization):
            return _on_behalf(SERVICE, tenant)
        if not authorization:
            raise UnauthorizedError(
                "a key is needed: send `Authorization: Bearer tfk_...` (clients take it from TRIFORGE_KEY); "
                "`triforge key create` makes one"
            )
        key = await self._valid_key(self._keys, authorization)
        caller = Caller(
            name=key.name, key_id=key.id, tenant=key.tenant, everything=key.tenant == OPERATOR, scope=key.scope
        )  # fmt: skip
        return _on_behalf(caller, tenant) if caller.everything else caller

    def authorize(self, caller: Caller, required: Requirement) -> None:
        """Accept a caller that meets the requirement, else raise ForbiddenError."""
        if required == "public" or caller.scope == "service":
            return
        if required == "service":
            raise ForbiddenError(
                "only the deployment's own services may ask for this (TRIFORGE_SERVICE_SECRET)"
            )
        if required == "operator":
            if not (caller.everything and caller.scope == "admin"):
                raise ForbiddenError(
                    f"this needs a key of the tenant {OPERATOR!r} with the scope 'admin': it concerns all tenants"
                )
        elif SCOPES.index(caller.scope) < SCOPES.index(required):
            raise ForbiddenError(
                f"this needs the scope {required!r}, the key {caller.key_id} has {caller.scope!r}"
            )

    async def _valid_key(self, keys: KeyCache, authorization: bytes) -> Key:
        parts = parse_key("tfk", key_of(authorization.decode("latin-1")))
        key = await keys.find(parts[0]) if parts else None
        if key is None or parts is None or not key.opens(parts[1]):
            raise UnauthorizedError(
                "the key is not known here; look at TRIFORGE_KEY, or make another with `triforge key create`"
            )
        now, mend = self._clock(), "make another with `triforge key create`"
        if key.revoked_at is not None:
            raise UnauthorizedError(f"key {key.id} was revoked; {mend}")
        if key.expires_at is not None and key.expires_at <= now:
            raise UnauthorizedError(f"key {key.id} has expired; {mend}")
        if now - self._touched.get(key.id, 0.0) >= _TOUCH_S:
            self._touched[key.id] = now
            task = asyncio.create_task(keys.touch(key))
            self._touching.add(task)
            task.add_done_callback(self._touching.discard)
        return key

    async def drain(self) -> None:
        """Wait until every use of a key is stored."""
        while self._touching:
            await asyncio.gather(*self._touching, return_exceptions=True)


def _on_behalf(caller: Caller, tenant: str) -> Caller:
    if not tenant:
        return caller
    require_tenant_name(tenant)
    return replace(caller, tenant=tenant, everything=False)


VERSION_HEADER: Final = "Triforge-Version"
_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.[0-9A-Za-z.+-]{1,40})?")


def require_served_version(client: str, here: str = __version__) -> None:
    """Raise VersionError when the client is newer; patch releases do not count, nor does text that is no version."""
    theirs, ours = _VERSION.fullmatch(client), _VERSION.fullmatch(here)
    if theirs and ours and [*map(int, theirs.groups())] > [*map(int, ours.groups())]:
        raise VersionError(
            f"the client is triforge {client}, this service is {here}: upgrade the service, or use a client of "
            f"{ours[1]}.{ours[2]}"
        )
