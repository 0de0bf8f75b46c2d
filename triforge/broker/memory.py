"""The broker in one process: for tests, and for programs that run the whole loop in one event loop.

The services' own classes run on it as on Redis; only their `__main__` modules name `RedisBroker` and Celery. A whole loop:

    broker = MemoryBroker()
    broker.serve(ROLLOUT_QUEUE, Job(ROLLOUT_TASK, GroupTask, RolloutWorker(broker=broker, ...).play))
    broker.serve(JUDGE_QUEUE, Job(JUDGE_TASK, JudgeTask, JudgeWorker(broker=broker, ...).judge))
    adapt = AdaptWorker(broker=broker, ...)
    broker.serve(ADAPT_QUEUE, Job(ADAPT_TASK, TaskOutcome, adapt.handle))
    create_task(adapt.watch())                                       # sends lost outcomes again
    create_task(LearnerProcess(broker, artifacts, role, trainer).run())     # one for each trained model
    create_task(Orchestrator(Parts(broker=broker, ...)).run_forever())
    ...
    await broker.close()                                             # cancels what `serve` started

env_adapter's app takes `SessionLog(broker)` and is called through `httpx.ASGITransport`.
"""

# ruff: noqa: D102 - documented in Broker
from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triforge.broker.jobs import Job
from triforge.broker.protocol import PAYLOAD_TTL_S, QUEUE_OF, Broker, key
from triforge.errors import StorageError, UnavailableError
from triforge.telemetry import tracing

_FOREVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that waits."""

    task: str
    payload: str
    headers: Mapping[str, str]
    at: float
    failures: int = 0


class MemoryBroker(Broker):
    """A broker that ends with its process; for one event loop.

    Attributes:
        queues: waiting jobs, the oldest first, by queue.
    """

    def __init__(self, *, lease_s: float = 10.0) -> None:
        self.lease_s = lease_s
        self.queues: dict[str, deque[Submitted]] = defaultdict(deque)
        self._texts: dict[str, tuple[str, float]] = {}  # with the time of their end
        self._counts: dict[str, int] = defaultdict(int)
        self._tables: dict[str, set[str]] = defaultdict(set)
        self._streams: dict[str, list[dict[str, str]]] = defaultdict(list)
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- jobs ----

    async def submit(self, task: str, payload: str) -> None:
        self._enqueue(Submitted(task, payload, tracing.headers(), time.time()))

    def _enqueue(self, job: Submitted) -> None:
        self.queues[QUEUE_OF[job.task]].append(job)
        self._wake()

    async def depth(self, queue: str) -> int:
        return len(self.queues[queue])

    async def oldest_s(self, queue: str) -> float:
        waiting = self.queues[queue]
        return max(0.0, time.time() - waiting[0].at) if waiting else 0.0

    def serve(self, queue: str, *jobs: Job[Any], concurrency: int = 64) -> None:
        """Do the jobs of a queue, so many at a time, until `close`."""
        by_name = {job.name: job for job in jobs}
        for _ in range(concurrency):
            self._start(self._work(queue, by_name))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, queue: str, jobs: Mapping[str, Job[Any]]) -> None:
        while True:
            while not self.queues[queue]:
                await self._changed.wait()
            submitted = self.queues[queue].popleft()
            job = jobs.get(submitted.task)
            if job is None:
                Job.log.error("dropped a job of %s: no worker of %s does it", submitted.task, queue)
                continue
            try:
                await job.run(submitted.payload, submitted.headers)
            except (UnavailableError, StorageError) as error:
                pause = job.pause_s(error, submitted.failures)
                if pause is not None:
                    self._start(self._later(submitted, pause))
            except Exception:
                job.log.exception("a job of %s failed", job.name)

    async def _later(self, job: Submitted, pause: float) -> None:
        await asyncio.sleep(pause)
        self._enqueue(replace(job, failures=job.failures + 1))

    # ---- payloads ----

    def _text(self, key: str) -> str | None:
        text, until = self._texts.get(key, ("", 0.0))
        if until > time.monotonic():
            return text
        self._texts.pop(key, None)
        return None

    async def put(self, key: str, text: str, ttl_s: float = PAYLOAD_TTL_S) -> bool:
        if self._text(key) is not None:
            return False
        self._texts[key] = (text, time.monotonic() + ttl_s)
        return True

    async def put_before(self, key: str, text: str, mark: str) -> bool | None:
        if self._text(key) is None and self._text(mark) is not None:
            return None
        return await self.put(key, text)

    async def get(self, *keys: str) -> list[str | None]:
        return [self._text(key) for key in keys]

    async def exists(self, *keys: str) -> set[str]:
        return {key for key in keys if self._text(key) is not None}

    async def delete(self, *keys: str) -> None:
        for name in keys:
            self._texts.pop(name, None)
            self._counts.pop(name, None)

    async def count(self, key: str, *others: str) -> tuple[int, list[str | None]]:
        self._counts[key] += 1
        return self._counts[key], await self.get(*others)

    async def add(self, table: str, name: str) -> None:
        self._tables[table].add(name)

    async def discard(self, table: str, name: str) -> None:
        self._tables[table].discard(name)

    async def members(self, table: str) -> set[str]:
        return set(self._tables[table])

    @contextlib.asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[bool]:
        lease = key("lease", name)
        if not await self.put(lease, "1", _FOREVER_S):
            yield False
            return
        await self.put(key("started", name), "1")
        try:
            yield True
        finally:
            await self.delete(lease)

    # ---- streams ----

    async def append(self, stream: str, fields: dict[str, str]) -> None:
        self._streams[stream].append(dict(fields))
        self._wake()

    async def read(
        self, stream: str, after: str, *, block_s: float, count: int = 1000
    ) -> list[tuple[str, dict[str, str]]]:
        first = int(after)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(block_s):
                while len(self._streams[stream]) <= first:
                    await self._changed.wait()
        entries = self._streams[stream][first : first + count]
        return [(str(number), entry) for number, entry in enumerate(entries, start=first + 1)]

    async def last_id(self, stream: str) -> str:
        return str(len(self._streams[stream]))

    async def ping(self) -> None:
        return

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
