"""The stores of a deployment: database, artifacts, Redis."""

from __future__ import annotations

import time

from triforge.broker import QUEUES, Broker, RedisBroker
from triforge.config import Settings
from triforge.doctor.findings import Finding, bad, ok, warning
from triforge.errors import TriforgeError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database

_LONG_S = 300.0
_SKEW_S, _FAR_S = 5.0, 60.0  # leases last about ten seconds, records are ordered by the clock


def database(url: str) -> list[Finding]:
    """Whether the database answers and has this version's schema; blocking, changes nothing."""
    try:
        store = Database(url)
        try:
            revision, head = store.schema()
        finally:
            store.close()
    except TriforgeError as error:
        mend = "set TRIFORGE_DATABASE_URL to one that this version can use"
        if isinstance(error, UnavailableError):
            mend = "start it, or set TRIFORGE_DATABASE_URL"
        return [bad("database", error.detail, mend)]
    if revision is None:
        return [ok("database", "is empty; the first service that starts fills it")]
    if revision != head:
        said = f"has schema {revision}, this version writes {head}"
        return [
            warning("database", said, "restart the services: the first one brings it up to date")
        ]
    return [ok("database", f"answers, schema {head}")]


def artifacts(url: str) -> list[Finding]:
    """Whether the artifact store can be written and read; blocking."""
    try:
        store = ArtifactStore(url)
        store.try_out()
    except TriforgeError as error:
        return [bad("artifacts", error.detail, "make it writable, or set TRIFORGE_ARTIFACTS_URL")]
    return [ok("artifacts", f"{store.root} can be written and read")]


async def broker(settings: Settings) -> list[Finding]:
    """Whether Redis answers with these credentials, and whether its clock agrees with ours."""
    broker = RedisBroker(settings.redis_url)
    try:
        before = time.time()
        theirs = await broker.clock()
        after = time.time()
        waiting = [found for queue in QUEUES for found in await _queue(broker, queue)]
    except TriforgeError as error:
        mend = "start Valkey or Redis, or set TRIFORGE_REDIS_URL (redis://:password@host:port/0)"
        return [bad("redis", error.detail, mend)]
    finally:
        await broker.close()
    seen = clock("redis", theirs - (before + after) / 2, blur_s=(after - before) / 2)
    return [ok("redis", "answers"), seen, *waiting]


async def _queue(broker: Broker, queue: str) -> list[Finding]:
    """A job that waits for long; a queue that gets on is not worth a line."""
    oldest_s = await broker.oldest_s(queue)
    if oldest_s < _LONG_S:
        return []
    said = f"{await broker.depth(queue)} jobs wait, the oldest for {oldest_s / 60:.0f} minutes"
    mend = (
        f"start {queue} workers, or more of them; the log of one that runs says what it waits for"
    )
    return [warning(f"queue {queue}", said, mend)]


def clock(whose: str, skew_s: float, *, blur_s: float = 0.0) -> Finding:
    """How far another machine's clock is from ours, in seconds; `blur_s` of it mean nothing."""
    said = f"{whose} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this machine"
    mend = "let a time service (chrony, systemd-timesyncd) set the clocks of both machines"
    away = abs(skew_s) - blur_s
    if away > _FAR_S:
        return bad("clock", said, mend)
    if away > _SKEW_S:
        return warning("clock", said, mend)
    return ok("clock", f"{whose} agrees within {_SKEW_S:.0f} s")
