"""Token buckets in Redis, so that all replicas of a service count together.

A bucket holds a minute's requests and fills evenly; a request takes one. Redis's own clock counts, so the clocks of the
replicas do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from triforge.errors import UnavailableError

# KEYS[1] bucket; ARGV[1] requests a minute; ARGV[2] seconds since 1970, or empty for Redis's clock.
_TAKE = """
local size = tonumber(ARGV[1])
local now = tonumber(ARGV[2])
if now == nil then
  local clock = redis.call('TIME')
  now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
end
local held = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local at = tonumber(held[2]) or now
local tokens = math.min(size, (tonumber(held[1]) or size) + math.max(0, now - at) * size / 60)
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = (1 - tokens) * 60 / size end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens), 'at', string.format('%.6f', math.max(now, at)))
redis.call('EXPIRE', KEYS[1], 120)
return string.format('%.6f', wait)
"""
_TIMEOUT_S = 0.5  # a limiter that is slow must not be what slows down
_NEVER_S = 60.0


class Buckets:
    """Counts requests by name.

    Args:
        clock: seconds since 1970, for tests; None is Redis's own.
    """

    def __init__(self, redis_url: str, *, clock: Callable[[], float] | None = None) -> None:
        self._redis: Any = aioredis.from_url(
            redis_url, socket_connect_timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S
        )
        self._clock = clock

    async def take(self, name: str, *, per_minute: int) -> float:
        """Take a place; 0 if there was one, else the seconds until there will be.

        Raises:
            UnavailableError: Redis is away.
        """
        if per_minute < 1:
            return _NEVER_S
        now = "" if self._clock is None else f"{self._clock():.6f}"
        try:
            return float(await self._redis.eval(_TAKE, 1, f"tf:rate:{name}", per_minute, now))
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not count requests ({error})") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()
