"""The orchestrator: takes runs one after another, and records their progress and their end.

Of several orchestrators of one deployment, the holder of a run's lease works on it. The run's row names the last one that took
the run: an orchestrator that lost its lease without noticing (its process was stopped, or Redis was away) cannot write any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import replace
from pathlib import Path

from services.trainer.loop.gauges import ENDED as ENDED_RUNS
from services.trainer.loop.gauges import PROGRESS
from services.trainer.loop.parts import Parts, StopRequested
from services.trainer.loop.run_record import RunRecord
from services.trainer.loop.train_loop import TrainLoop
from services.trainer.runs.store import Superseded
from services.trainer.runs.trackers import Reporting
from triforge.config import RunConfig, parse
from triforge.errors import StorageError, TriforgeError, UnavailableError
from triforge.retry import Attempts, RetryPolicy
from triforge.store.copies import keep_copy
from triforge.telemetry import about
from triforge.types import ENDED, RunState, RunStatus

log = logging.getLogger(__name__)

_IDLE_S = 0.5  # how often an idle orchestrator looks for a run
_RETRY = RetryPolicy(first_s=0.5, longest_s=5.0, retry_on=lambda _: True)


class Orchestrator:
    """Works on one run at a time, oldest first; an interrupted run goes first.

    Without a run it polls every `idle_s` seconds; `retry` gives the pauses after errors.
    """

    def __init__(
        self, parts: Parts, *, idle_s: float = _IDLE_S, retry: RetryPolicy = _RETRY
    ) -> None:
        self._parts, self._idle_s, self._attempts = parts, idle_s, Attempts(retry)
        self._current = ""  # the announced run, whose trackers are open
        self._waiting = ("", "")  # run and reason of the last event
        self._trackers = Reporting()

    async def run_forever(self) -> None:
        """Serve the queue of runs until cancelled."""
        while True:
            try:
                run = await asyncio.to_thread(self._parts.store.next_runnable)
                if run is None:
                    await asyncio.sleep(self._idle_s)
                else:
                    await self.work_on(run)
                self._attempts.succeeded()
            except UnavailableError as error:
                log.warning("waiting: %s", error.detail)
                await self._attempts.failed(error)
            except Exception as error:  # later runs need an orchestrator, whatever happens
                log.exception("the orchestrator goes on")
                await self._attempts.failed(error)

    async def work_on(self, run: RunState) -> None:
        """Bring one run to its end, or to the point where it stops or fails.

        Raises:
            UnavailableError: a service is away; the run stays as it is and is continued later.
        """
        async with self._parts.broker.lease(f"orchestrator:{run.id}") as held:
            if not held:
                await asyncio.sleep(self._idle_s)
                return
            store = self._parts.store.held_by(uuid.uuid4().hex)
            self._parts = replace(self._parts, store=store)
            try:
                with about(run=run.id, pool=run.pool_id):
                    await self._work_on(run)
            except Superseded:
                log.warning("run %s is worked on by another process now", run.id)
                await self._put_down()

    async def _work_on(self, run: RunState) -> None:
        parts = self._parts
        run = await asyncio.to_thread(parts.store.take, run.id)
        if run.status in ENDED:
            return
        try:
            reason = await self._train(run, parse(run.config))
            await self._end(run, "finished", reason)
        except StopRequested as stop:
            await self._end(run, "stopped", str(stop) or "stopped on request")
            await self._take_back(run)
        except Superseded:
            raise
        except UnavailableError as error:
            await self._wait(run, f"waiting: {error.detail}")
            raise
        except Exception as error:
            log.exception("run %s failed", run.id)
            await self._end(run, "failed", _reason(error))
        await self._trackers.update()
        state = await asyncio.to_thread(parts.store.get, run.id)
        await self._put_down(state.status)
        await parts.emit("run", run.id, status=state.status, step=state.step, reason=state.reason)

    async def _train(self, run: RunState, config: RunConfig) -> str:
        """Take the remaining steps; return the reason with which the run ends."""
        parts = self._parts

        async def check() -> None:
            if await asyncio.to_thread(parts.store.status, run.id) == "stopping":
                raise StopRequested

        await self._announce(run, config)
        PROGRESS.set_to_current_time()
        await check()  # before any request to a service: a run can be stopped while one is away
        await parts.broker.begin_run(run.id)
        record = RunRecord(parts, run, self._trackers)
        ended = await TrainLoop(parts, run, config, record, check).run()
        return ended or await record.ending()

    async def _announce(self, run: RunState, config: RunConfig) -> None:
        """Announce that the run goes on, and open its trackers; those of a run that waits for a service stay open."""
        if self._current == run.id:
            return
        await self._put_down()
        await self._parts.emit("run", run.id, status=run.status, step=run.step)
        log.info("the run goes on after step %d of %d", max(run.step, 0), run.steps)
        steps = self._parts.store.steps
        self._trackers = Reporting.of(
            run, config, self._parts.artifacts, lambda last: steps(run.id, after=last)
        )
        self._current = run.id

    async def _put_down(self, status: str = "") -> None:
        await self._trackers.close(status)
        self._current, self._waiting, self._trackers = "", ("", ""), Reporting()

    async def _end(self, run: RunState, status: RunStatus, reason: str = "") -> None:
        """End the run; workers drop its jobs that are still in the queues."""
        await asyncio.to_thread(
            self._parts.store.status, run.id
        )  # raises if another orchestrator has it
        with contextlib.suppress(TriforgeError):  # leftover jobs only cost time
            await self._parts.broker.end_run(run.id)
        await asyncio.to_thread(self._keep_newest, run.id)
        await asyncio.to_thread(self._parts.store.set_status, run.id, status, reason)
        ENDED_RUNS.labels(status).inc()
        log.info("the run is %s%s", status, f": {reason}" if reason else "")

    def _keep_newest(self, run_id: str) -> None:
        """Leave the newest versions of a run on the disk where versions are in memory."""
        store = self._parts.store
        for role, version in store.get(run_id).versions.items():
            recorded = store.find_weights(run_id, role, version)
            try:
                if recorded and Path(recorded[0]).is_dir():
                    keep_copy(self._parts.artifacts, Path(recorded[0]))
            except StorageError as error:
                log.warning("version %d of the %s is on no disk: %s", version, role, error)

    async def _take_back(self, run: RunState) -> None:
        """Have engines serve again if a killed orchestrator of the run had lent their memory."""
        config = parse(run.config)
        for role in config.trained if config.run.colocate else ():
            with contextlib.suppress(TriforgeError):
                await self._parts.apis[role].resume_memory()

    async def _wait(self, run: RunState, reason: str) -> None:
        """Record once why the run waits, if database and broker answer."""
        if self._waiting == (run.id, reason):
            return
        self._waiting = (run.id, reason)
        with contextlib.suppress(TriforgeError):
            await asyncio.to_thread(self._parts.store.set_reason, run.id, reason)
            await self._parts.emit("run", run.id, status=run.status, step=run.step, reason=reason)


def _reason(error: Exception) -> str:
    if isinstance(error, TriforgeError):
        return f"{error.kind}: {error.detail}"
    return f"internal: {type(error).__name__}: {error}"
