"""Keys of Valkey, read from outside: leases, jobs, payloads; and foreign messages written there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis
from redis.exceptions import RedisError

from triforge.broker import QUEUES

_LEASE = "tf:lease:"
_POLL_S = 0.05
_GONE = -2  # what Valkey says of a key that is not there any more


class Broker:
    """A second pair of eyes on the deployment's Valkey.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True, socket_timeout=5)

    def close(self) -> None:
        self._redis.close()

    def leases(self) -> dict[str, str]:
        """Return the held jobs with the holder's token. Empty while Valkey is away."""
        try:
            keys = list(self._redis.scan_iter(match=f"{_LEASE}*", count=1000))
            values = self._redis.mget(keys) if keys else []
        except RedisError:
            return {}
        pairs = zip(keys, values, strict=True)
        return {key.removeprefix(_LEASE): value for key, value in pairs if value is not None}

    def keys(self, run_id: str) -> dict[str, int]:
        """All keys that name a run, with the seconds they have left; -1 is for ever."""
        found = list(self._redis.scan_iter(match=f"*{run_id}*", count=1000))
        left = {key: int(self._redis.ttl(key)) for key in found}
        return {key: ttl for key, ttl in left.items() if ttl != _GONE}

    def outcomes(self, run_id: str) -> int:
        """Return the groups of a run that adaptation has not processed yet."""
        return sum(run_id in name for name in self._redis.smembers("tf:outcomes"))

    def waiting(self) -> dict[str, int]:
        return {queue: int(self._redis.llen(queue)) for queue in QUEUES}

    def jobs(self, run_id: str) -> list[tuple[str, str]]:
        """(queue, message) of all jobs of a run that wait, or that some worker has taken and not acknowledged."""
        found = [
            (queue, text) for queue in QUEUES for text in self._redis.lrange(queue, 0, -1)
        ]  # fmt: skip
        for kept in self._redis.hvals("unacked"):
            message, _, queue = json.loads(kept)
            found.append((queue, json.dumps(message)))
        return [(queue, text) for queue, text in found if run_id in _body(text)]

    def again(self, jobs: Iterable[tuple[str, str]]) -> int:
        """Deliver jobs once more; returns how many."""
        count = 0
        for queue, text in jobs:
            message = json.loads(text)
            message["properties"]["delivery_tag"] = str(uuid.uuid4())
            self._redis.lpush(queue, json.dumps(message))
            count += 1
        return count

    def put(self, queue: str, raw: str | bytes) -> None:
        """Put bytes into a queue where the next worker takes them."""
        self._redis.rpush(queue, raw)

    def tell(self, stream: str, fields: Mapping[str, str | bytes]) -> None:
        """Put an entry on a stream, where everybody reads it."""
        self._redis.xadd(stream, fields)

    async def until_empty(self, *, within_s: float) -> bool:
        """Whether all queues run empty in time."""
        end = time.monotonic() + within_s
        while any(self.waiting().values()):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def held(self, kind: Callable[[str], bool], *, within_s: float) -> dict[str, str]:
        """Leases of a kind, once there are some; empty if none came in time."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            found = {name: token for name, token in self.leases().items() if kind(name)}
            if found:
                return found
            await asyncio.sleep(_POLL_S)
        return {}

    async def until_taken_over(
        self, lost: dict[str, str], is_done: Callable[[str], bool], *, within_s: float
    ) -> dict[str, float]:
        """Wait until jobs of dead holders have a new holder.

        Args:
            is_done: whether the job was done before, so that no process takes it over.

        Returns:
            Seconds from the call to the new holder, by job; infinite if there was none in time.
        """
        begun, waiting = time.monotonic(), dict(lost)
        taken: dict[str, float] = {}
        while waiting and time.monotonic() - begun < within_s:
            now = self.leases()
            for name, token in list(waiting.items()):
                holder = now.get(name)
                if holder is not None and holder != token:
                    taken[name] = time.monotonic() - begun
                    del waiting[name]
                elif holder is None and is_done(name):
                    del waiting[name]
            await asyncio.sleep(_POLL_S)
        return taken | dict.fromkeys(waiting, float("inf"))

    def is_judged(self, trajectory_id: str) -> bool:
        """Whether a trajectory has votes, or its group's payloads are gone with its step."""
        group_id = trajectory_id.rpartition("-")[0]
        with contextlib.suppress(RedisError):
            done = (f"tf:votes:{trajectory_id}", f"tf:committed:{group_id}")
            return bool(self._redis.exists(*done))
        return False

    def is_adapted(self, group_id: str) -> bool:
        """Return whether adaptation has processed a group."""
        with contextlib.suppress(RedisError):
            return not self._redis.sismember("tf:outcomes", group_id)
        return False

    def is_played(self, group_id: str) -> bool:
        """Whether a group is played, or its payloads are gone with its step."""
        with contextlib.suppress(RedisError):
            return bool(self._redis.exists(f"tf:group:{group_id}", f"tf:committed:{group_id}"))
        return False


def envelope(task: str, body: str, *, queue: str) -> str:
    """Return a message as Celery writes them, with any text as argument."""
    tag, name = str(uuid.uuid4()), str(uuid.uuid4())
    arguments = json.dumps([[body], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])  # fmt: skip
    return json.dumps(
        {
            "body": base64.b64encode(arguments.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"lang": "py", "task": task, "id": name, "root_id": name, "parent_id": None, "group": None},
            "properties": {
                "correlation_id": name, "delivery_mode": 2, "delivery_tag": tag, "body_encoding": "base64",
                "delivery_info": {"exchange": "", "routing_key": queue}, "priority": 0,
            },
        }
    )  # fmt: skip


def _body(text: str) -> str:
    try:
        return base64.b64decode(json.loads(text)["body"]).decode(errors="replace")
    except (ValueError, KeyError, TypeError):
        return ""


def is_group(name: str) -> bool:
    """Whether a lease is a rollout worker's on a group of training."""
    return "-train-" in name and len(name.rpartition("-")[2]) == 4 and not _special(name)


def is_trajectory(name: str) -> bool:
    """Whether a lease is a judge's on a trajectory of training."""
    return "-train-" in name and len(name.rpartition("-")[2]) == 2 and not _special(name)


def is_outcome(name: str) -> bool:
    """Whether a lease is an adapt worker's."""
    return name.startswith("adapt:")


def _special(name: str) -> bool:
    return ":" in name
