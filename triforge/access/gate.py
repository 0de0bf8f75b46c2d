"""What an API asks of each request: whose key, which scope, how often, from a client of which version.

A key is looked up in the database once in `KNOWN_S` seconds a process, so a key that is revoked, or whose tenant's rate is
changed, opens APIs for at most so long. The secret of the deployment's own services needs no database: training goes on
while it is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final, Protocol

from triforge import __version__
from triforge.access.callers import NOBODY, OPERATOR, SCOPES, Caller, Wanted
from triforge.access.exposure import demand_safe
from triforge.access.keys import Key, KeyStore, demand_name, split
from triforge.config import Settings
from triforge.errors import (
    BusyError,
    ForbiddenError,
    RateError,
    StorageError,
    UnauthorizedError,
    UnavailableError,
    VersionError,
)
from triforge.store.database import Database

KNOWN_S: Final = 5.0
_WAITING: Final = 1000  # unknown ids that wait to be looked up
_LOOKING: Final = 2  # and those that are
_TOUCH_S: Final = 60.0  # how exactly the last use of a key is known
SERVICE: Final = Caller(name="service", tenant=OPERATOR, everything=True)
STRANGER: Final = Caller(tenant="", scope="read")  # sees nothing that is anybody's
_log = logging.getLogger(__name__)


class Limiter(Protocol):
    """Counts requests over all replicas of a service."""

    async def take(self, name: str, *, per_minute: int) -> float:
        """Seconds until the next request of this name is in order, 0 when this one is; UnavailableError if nobody counts."""


class KeyBook:
    """Keys by id, remembered for a moment: `holds` ids, and as many again of those that do not exist.

    However many unknown ids are shown, few are looked up at a time, and they cannot push out those that exist, which are
    looked up beside them. So strangers cost the database little, and a new key opens at once.
    """

    def __init__(
        self, store: KeyStore, *, clock: Callable[[], float] = time.monotonic, holds: int = 10_000
    ) -> None:
        self._store = store
        self._clock = clock
        self._holds = holds
        self._known: OrderedDict[str, tuple[float, Key | None]] = OrderedDict()  # until when, what
        self._absent: OrderedDict[str, tuple[float, Key | None]] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Key | None]] = {}
        self._strangers = asyncio.Semaphore(_LOOKING)

    async def find(self, key_id: str) -> Key | None:
        """The key, at most `KNOWN_S` seconds old. Many who ask at once ask the database once.

        Raises:
            BusyError: more unknown ids wait to be looked up than are taken on.
            UnavailableError: the database does not answer, and the key was not asked for lately.
        """
        until, found = self._known.get(key_id) or self._absent.get(key_id) or (-math.inf, None)
        if until > self._clock():
            return found
        if key_id not in self._asked:
            if found is None and len(self._asked) >= _WAITING:
                raise BusyError(
                    "many unknown keys are being looked up; ask again", retry_after_s=1.0
                )
            turn = self._strangers if found is None else contextlib.nullcontext()
            self._asked[key_id] = asyncio.create_task(self._look_up(key_id, turn))
        return await asyncio.shield(self._asked[key_id])

    async def _look_up(
        self, key_id: str, turn: AbstractAsyncContextManager[Any, Any]
    ) -> Key | None:
        try:
            async with turn:
                until = self._clock() + KNOWN_S
                key = await asyncio.to_thread(self._store.find, key_id)
        finally:
            del self._asked[key_id]
        self._known.pop(key_id, None)
        held = self._absent if key is None else self._known
        held[key_id] = (until, key)
        held.move_to_end(key_id)
        if len(held) > self._holds:
            held.popitem(last=False)
        return key

    async def touch(self, key: Key) -> None:
        """Note that the key is used; that it could not be noted keeps nobody out."""
        try:
            await asyncio.to_thread(self._store.touch, key.id)
        except (UnavailableError, StorageError) as error:
            _log.warning("the last use of key %s is not noted: %s", key.id, error.detail)


class Gate:
    """Decides on requests."""

    def __init__(
        self,
        keys: KeyBook | None,
        *,
        service_secret: str = "",
        limiter: Limiter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._secret = service_secret.encode()
        self._limiter = limiter
        self._clock = clock
        self._touching: set[asyncio.Task[None]] = set()
        self._touched: dict[str, float] = {}

    @property
    def asks(self) -> bool:
        """Whether keys are asked for."""
        return self._keys is not None

    def is_service(self, authorization: bytes) -> bool:
        """Whether this is the Authorization header of one of the deployment's own services."""
        return (
            self._keys is not None
            and bool(self._secret)
            and hmac.compare_digest(authorization, b"Bearer " + self._secret)
        )

    async def identify(
        self, authorization: bytes, *, tenant: str = "", public: bool = False
    ) -> Caller:
        """Who asks.

        Args:
            tenant: for whom a service or an operator asks; others ask for themselves whatever they say.
            public: whether nobody need say who they are.

        Raises:
            UnauthorizedError: no key, or one that opens nothing.
            UnavailableError: the keys cannot be looked up.
        """
        if self._keys is None:
            return NOBODY
        if public:
            return STRANGER
        if self.is_service(authorization):
            return _on_behalf(SERVICE, tenant)
        if not authorization:
            raise UnauthorizedError(
                "a key is needed: send `Authorization: Bearer tfk_...` (clients take it from TRIFORGE_KEY); "
                "`triforge key create` makes one"
            )
        key = await self._open(self._keys, authorization)
        who = Caller(
            name=key.name, key_id=key.id, tenant=key.tenant, everything=key.tenant == OPERATOR, scope=key.scope,
            rate=key.requests_per_minute,
        )  # fmt: skip
        return _on_behalf(who, tenant) if who.everything else who

    async def demand(self, who: Caller, wanted: Wanted) -> None:
        """Pass who may ask for this now, else RateError or ForbiddenError. What is refused for its scope counts as a request, too."""
        if wanted == "public" or who.scope == "service":
            return
        await self._demand_rate(who)
        if wanted == "service":
            raise ForbiddenError(
                "only the deployment's own services may ask for this (TRIFORGE_SERVICE_SECRET)"
            )
        if wanted == "operator":
            if not (who.everything and who.scope == "admin"):
                raise ForbiddenError(
                    f"this needs a key of the tenant {OPERATOR!r} with the scope 'admin': it concerns all tenants"
                )
        elif SCOPES.index(who.scope) < SCOPES.index(wanted):
            raise ForbiddenError(
                f"this needs the scope {wanted!r}, the key {who.key_id} has {who.scope!r}"
            )

    async def _open(self, keys: KeyBook, authorization: bytes) -> Key:
        scheme, _, text = authorization.decode("latin-1").partition(" ")
        parts = split(text.strip()) if scheme.lower() == "bearer" else None
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

    async def _demand_rate(self, who: Caller) -> None:
        if who.rate is None or self._limiter is None:
            return
        try:
            wait = await self._limiter.take(who.tenant, per_minute=who.rate)
        except (UnavailableError, StorageError) as error:
            # A rate guards against load and not against strangers; without Redis the services can take on little anyway.
            _log.warning("requests of tenant %s are not counted: %s", who.tenant, error.detail)
            return
        if wait > 0:
            raise RateError(
                f"tenant {who.tenant} sends more than its {who.rate} requests a minute (requests_per_minute; the operator "
                f"raises it with `triforge tenant set {who.tenant} --requests-per-minute N`)",
                retry_after_s=wait,
            )

    async def drain(self) -> None:
        """Wait for what is still being noted."""
        while self._touching:
            with contextlib.suppress(Exception):
                await asyncio.gather(*self._touching)


def _on_behalf(who: Caller, tenant: str) -> Caller:
    if not tenant:
        return who
    demand_name(tenant)
    return replace(who, tenant=tenant, everything=False, rate=None)


def make_gate(
    settings: Settings, database: Database | None, limiter: Limiter | None = None
) -> Gate:
    """The gate of a service; the database is needed where keys are asked for. Raises as `demand_safe` does."""
    demand_safe(settings)
    if not settings.keyed:
        return Gate(None)
    assert database is not None
    return Gate(
        KeyBook(KeyStore(database)),
        service_secret=settings.service_secret.get_secret_value(),
        limiter=limiter,
    )


HEADER: Final = "Triforge-Version"
_FORM: Final = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.[0-9A-Za-z.+-]{1,40})?")


def demand_not_newer(given: str, here: str = __version__) -> None:
    """Raises VersionError when the client is newer; patch releases do not count, nor does what is no version."""
    theirs, ours = _FORM.fullmatch(given), _FORM.fullmatch(here)
    if theirs and ours and [*map(int, theirs.groups())] > [*map(int, ours.groups())]:
        raise VersionError(
            f"the client is triforge {given}, this service is {here}: upgrade the service, or use a client of "
            f"{ours[1]}.{ours[2]}"
        )
