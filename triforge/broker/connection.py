"""The connection to Redis, and its failures as errors of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import redis.asyncio as aioredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from triforge.broker.convoy import Convoy
from triforge.errors import StorageError, UnavailableError

PAYLOAD_TTL_S: Final = 7 * 24 * 3600  # an abandoned group's payload leaves Redis after a week
STREAM_LENGTH: Final = 100_000  # entries kept a stream; a run needs only the newest few hundred


class Connection:
    """A server; all methods raise `UnavailableError` while it is away."""

    def __init__(self, redis_url: str) -> None:
        self._redis: Any = aioredis.from_url(
            redis_url, decode_responses=True, encoding_errors="replace",  # garbage is to be read, and passed over
            socket_connect_timeout=5, health_check_interval=30,
        )  # fmt: skip
        self._convoy = Convoy(self._redis, self._call)

    async def _ask(self, *command: Any) -> Any:
        """The answer to a command that is answered at once; see `Convoy`."""
        return await self._convoy.execute(*command)

    async def _script(self, script: str, keys: Sequence[str], *arguments: Any) -> Any:
        return await self._convoy.execute("EVAL", script, len(keys), *keys, *arguments)

    async def _call(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            # The pool's idle connections are lost as well: each would fail one more call, minutes later.
            with contextlib.suppress(RedisError, OSError):
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise UnavailableError(f"Redis does not answer ({error}); is it running?") from error
        except RedisError as error:
            raise StorageError(f"Redis refused a command: {error}") from error

    async def ping(self) -> None:
        """Raises UnavailableError when Redis is away."""
        await self._call(self._redis.ping())

    async def clock(self) -> float:
        """Seconds since 1970 by Redis's clock. Raises UnavailableError when it is away or refuses us."""
        seconds, micros = await self._call(self._redis.time())
        return float(seconds) + float(micros) / 1e6
