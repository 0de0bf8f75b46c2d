"""The stores of a deployment, as they answer: the database, the artifacts, Redis with its queues."""

from __future__ import annotations

import contextlib
import time

from triforge.broker import QUEUES, Broker, RedisBroker
from triforge.config import Settings
from triforge.doctor.local import Finding, bad, ok, warning
from triforge.doctor.services import LONG_S, clock
from triforge.errors import TriforgeError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database


def database(url: str) -> list[Finding]:
    """Whether the database answers and has this version's schema; blocking, changes nothing."""
    try:
        with contextlib.closing(Database(url)) as store:
            revision, head = store.schema()
    except TriforgeError as error:
        mend = "set TRIFORGE_DATABASE_URL to one that this version can use"
        if isinstance(error, UnavailableError):
            mend = "start it, or set TRIFORGE_DATABASE_URL"
        return [bad("database", error.detail, mend)]
    if revision is None:
        return [ok("database", "is empty; the first service that starts fills it")]
    if revision != head:
        said = f"has schema {revision}, this version writes {head}"
        mend = "restart the services: the first one brings it up to date"
        return [warning("database", said, mend)]
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
    """A job that waits for long; a queue that moves gets no line."""
    oldest_s = await broker.oldest_s(queue)
    if oldest_s < LONG_S:
        return []
    said = f"{await broker.depth(queue)} jobs wait, the oldest for {oldest_s / 60:.0f} minutes"
    mend = f"start {queue} workers, or more; the log of one that runs says what it waits for"
    return [warning(f"queue {queue}", said, mend)]
