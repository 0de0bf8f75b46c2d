"""The broker on Redis: jobs through Celery's client, everything else through redis-py."""

# ruff: noqa: D102 - documented in Broker
from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import redis.asyncio as aioredis
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from triforge.broker.protocol import PAYLOAD_TTL_S, Broker, key
from triforge.broker.workers import celery_app
from triforge.errors import StorageError, UnavailableError
from triforge.telemetry import tracing

_SENT_AT: Final = "triforge_sent_at"  # header of a job, in seconds since 1970
_STREAM_LENGTH: Final = 100_000  # entries kept a stream; a run needs only the newest few hundred
_AT_ONCE: Final = 1000  # commands of one pipeline
_CONNECTIONS: Final = 64  # one for each command in flight; further commands wait for a connection
_WAIT_S: Final = 120.0  # longest such wait: a slow machine does not mean that the server is away
# 1: stored, 0: the key has a text, -1: the mark has one.
_PUT_BEFORE: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if redis.call('EXISTS', KEYS[2]) == 1 then return -1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""


class RedisBroker(Broker):
    """A broker on one Redis or Valkey server.

    Args:
        lease_s: duration of a lease; it is renewed after a third of that.
    """

    def __init__(self, redis_url: str, *, lease_s: float = 10.0) -> None:
        pool = aioredis.BlockingConnectionPool.from_url(
            redis_url,
            max_connections=_CONNECTIONS,
            timeout=_WAIT_S,
            decode_responses=True,
            encoding_errors="replace",  # garbage is read and skipped
            socket_connect_timeout=5,
            health_check_interval=30,
        )
        self._redis: Any = aioredis.Redis.from_pool(pool)
        self._celery = celery_app(redis_url)
        self._sender = ThreadPoolExecutor(1, "send")  # one, so that jobs keep their order
        self.lease_s = lease_s

    async def _call(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            # The pool's idle connections are lost too: each would fail one more call, minutes later.
            with contextlib.suppress(RedisError, OSError):
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise UnavailableError(f"Redis does not answer ({error}); is it running?") from error
        except RedisError as error:
            raise StorageError(f"Redis refused a command: {error}") from error

    # ---- jobs ----

    async def submit(self, task: str, payload: str) -> None:
        headers = {_SENT_AT: time.time(), **tracing.headers()}
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._sender,
                partial(self._celery.send_task, task, args=[payload], headers=headers, retry=False),
            )
        except (OperationalError, RedisError, OSError) as error:
            # A server that is full or read-only may recover.
            raise UnavailableError(f"Redis does not take jobs ({error}); is it running?") from error

    async def depth(self, queue: str) -> int:
        return int(await self._call(self._redis.llen(queue)))

    async def oldest_s(self, queue: str) -> float:
        text = await self._call(self._redis.lindex(queue, -1))
        try:
            sent = float(json.loads(text or "{}")["headers"][_SENT_AT])
        except (ValueError, TypeError, LookupError):
            return 0.0
        return max(0.0, time.time() - sent)  # the clocks may differ a little

    # ---- payloads ----

    async def put(self, key: str, text: str, ttl_s: float = PAYLOAD_TTL_S) -> bool:
        ttl = max(1, int(ttl_s * 1000))
        return bool(await self._call(self._redis.set(key, text, nx=True, px=ttl)))

    async def put_before(self, key: str, text: str, mark: str) -> bool | None:
        call = self._redis.eval(_PUT_BEFORE, 2, key, mark, text, int(PAYLOAD_TTL_S * 1000))
        stored = int(await self._call(call))
        return None if stored < 0 else bool(stored)

    async def get(self, *keys: str) -> list[str | None]:
        texts: list[str | None] = await self._call(self._redis.mget(keys)) if keys else []
        return texts

    async def exists(self, *keys: str) -> set[str]:
        marks: list[int] = []
        for first in range(0, len(keys), _AT_ONCE):
            pipe = self._redis.pipeline(transaction=False)
            for name in keys[first : first + _AT_ONCE]:
                pipe.exists(name)
            marks += await self._call(pipe.execute())
        return {name for name, mark in zip(keys, marks, strict=True) if mark}

    async def delete(self, *keys: str) -> None:
        await self._call(self._redis.delete(*keys))

    async def count(self, key: str, *others: str) -> tuple[int, list[str | None]]:
        pipe = self._redis.pipeline()
        pipe.incr(key)
        pipe.expire(key, int(PAYLOAD_TTL_S))
        if others:
            pipe.mget(others)
        count, _, *texts = await self._call(pipe.execute())
        return int(count), texts[0] if texts else []

    async def add(self, table: str, name: str) -> None:
        await self._call(self._redis.sadd(table, name))

    async def discard(self, table: str, name: str) -> None:
        await self._call(self._redis.srem(table, name))

    async def members(self, table: str) -> set[str]:
        return set(await self._call(self._redis.smembers(table)))

    # ---- leases ----

    @contextlib.asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[bool]:
        lock = self._redis.lock(
            key("lease", name), timeout=self.lease_s, blocking=False, thread_local=False
        )
        # first: a job whose holder dies at once counts as begun, and is sent again when the lease has expired
        await self._call(self._redis.set(key("started", name), "1", ex=int(PAYLOAD_TTL_S)))
        if not await self._call(lock.acquire()):
            yield False
            return
        over = asyncio.Event()
        renewing = asyncio.create_task(self._renew(lock, over))
        try:
            yield True
        finally:
            over.set()
            await renewing
            with contextlib.suppress(RedisError, OSError):  # it expires by itself
                await lock.release()

    async def _renew(self, lock: Any, over: asyncio.Event) -> None:
        token = lock.local.token
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self.lease_s / 3)
                return
            with contextlib.suppress(RedisError, OSError):
                try:
                    await lock.reacquire()
                except (
                    LockError
                ):  # expired while Redis was away: take it again unless it has another holder
                    await lock.do_acquire(token)

    # ---- streams ----

    async def append(self, stream: str, fields: dict[str, str]) -> None:
        await self._call(self._redis.xadd(stream, fields, maxlen=_STREAM_LENGTH, approximate=True))

    async def read(
        self, stream: str, after: str, *, block_s: float, count: int = 1000
    ) -> list[tuple[str, dict[str, str]]]:
        block = max(1, int(block_s * 1000))
        reply = await self._call(self._redis.xread({stream: after}, count=count, block=block))
        return [(entry, fields) for _, entries in reply or [] for entry, fields in entries]

    async def last_id(self, stream: str) -> str:
        newest = await self._call(self._redis.xrevrange(stream, count=1))
        return str(newest[0][0]) if newest else "0"

    # ---- the server ----

    async def ping(self) -> None:
        await self._call(self._redis.ping())

    async def close(self) -> None:
        await self._redis.aclose()
        self._sender.shutdown(wait=False)
        self._celery.close()
