"""The orchestrator: one training step after another, each recorded before the next begins.

    plan ──► play and judge ──► credit ──► train both ──► publish ──► adapt ──► commit ──► forget payloads

| phase   | consumes                  | waits for                 | produces                             | after a crash                 |
|---------|---------------------------|---------------------------|--------------------------------------|-------------------------------|
| plan    | the run's pool            | env_adapter               | the step's groups                    | the stored plan is read again |
| play    | plan                      | rollout and judge workers | JudgedGroups                         | finished groups are reused    |
| credit  | JudgedGroups              | -                         | rows, ledger, measures               | computed again, same numbers  |
| train   | rows                      | both learners             | weight folders                       | an existing version is reused |
| publish | weight folders            | policy services              | live versions                        | repeated, same versions       |
| adapt   | measures                  | -                         | TaskOutcomes                         | counted once by group id      |
| commit  | everything above          | database                  | one row; the run's step moves        | the step is either in or not  |

Nothing is trained twice: a learner that has published version v+1 of a run only announces it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from services.trainer.collector import Intake
from services.trainer.engines import RunWeights
from services.trainer.evaluation import Evaluation, Evaluator
from services.trainer.gauges import ENDED as ENDED_RUNS
from services.trainer.gauges import PROGRESS, STEPS
from services.trainer.in_flight import Collector
from services.trainer.learners import Publisher
from services.trainer.parts import Parts, StopRequested
from services.trainer.reporting import Reporting
from services.trainer.run_rows import Superseded
from services.trainer.train_loop import StepResult, StepRunner
from triforge.config import RunConfig, parse
from triforge.errors import TriforgeError, UnavailableError
from triforge.telemetry import about, tracing
from triforge.types import ENDED, RunState, RunStatus, RunStep, TrainedRole

log = logging.getLogger(__name__)

_IDLE_S = 0.5  # how often an idle orchestrator looks for a run
_CHECK_S = 0.25  # how often a step that waits looks whether it was asked to stop
# What the log says of a step; `GET /v1/runs/{id}/steps` says everything.
_TOLD = ("success", "eval/greedy", "judge/outcome", "infrastructure_failures", "retries", "resent")
_RETRY_S = 2.0  # pause after a service was unavailable; the run goes on when it is back


class Orchestrator:
    """Works on one run at a time, oldest first; a run that was interrupted goes first.

    Args:
        parts: everything it talks to.
        idle_s: how often it looks for a run while there is none.
        retry_s: pause after a service was unavailable.
    """

    def __init__(self, parts: Parts, *, idle_s: float = _IDLE_S, retry_s: float = _RETRY_S) -> None:
        self._parts = parts
        self._idle_s = idle_s
        self._retry_s = retry_s
        self._said: tuple[str, str] | None = None  # run and reason, as people heard last
        self._told: tuple[str, Reporting] = ("", Reporting())  # the run that dashboards hear of

    async def run_forever(self) -> None:
        """Serve the queue of runs until cancelled."""
        while True:
            try:
                run = await asyncio.to_thread(self._parts.store.next_runnable)
                if run is None:
                    await asyncio.sleep(self._idle_s)
                    continue
                await self.conduct(run)
            except UnavailableError as error:
                log.warning("waiting: %s", error.detail)
                await asyncio.sleep(self._retry_s)
            except Exception:  # the border: whatever happens, later runs must find an orchestrator
                log.exception("the orchestrator goes on")
                await asyncio.sleep(self._retry_s)

    async def conduct(self, run: RunState) -> None:
        """Bring one run to its end, or to the point where it stops or fails.

        Of several orchestrators of one deployment the one that holds the run's lease works on it. One that has lost it without
        noticing (it stood still, or Redis was away) is told by the store, at the latest when it wants to write.

        Raises:
            UnavailableError: a service is away; the run stays as it is and is taken up again.
        """
        async with self._parts.broker.lease(f"orchestrator:{run.id}") as held:
            if not held:
                await asyncio.sleep(self._idle_s)
                return
            store = self._parts.store.held_by(uuid.uuid4().hex)
            self._parts = replace(self._parts, store=store)
            try:
                with about(run=run.id, pool=run.pool_id):
                    await self._conduct(run)
            except Superseded:
                log.warning("run %s is conducted by another process now", run.id)
                await self._told[1].close()
                self._said, self._told = None, ("", Reporting())

    async def _conduct(self, run: RunState) -> None:
        parts = self._parts
        run = await asyncio.to_thread(parts.store.take, run.id)
        if run.status in ENDED:
            return
        try:
            if self._said is None or self._said[0] != run.id:
                await parts.emit("run", run.id, status=run.status, step=run.step)
                self._said = (run.id, "")
                log.info("the run goes on after step %d of %d", max(run.step, 0), run.steps)
            config = parse(run.config)
            await self._tell_of(run, config)
            PROGRESS.set_to_current_time()
            await self._loop(run, config)
        except StopRequested:
            await self._set(run, "stopped", "stopped on request")
        except Superseded:
            raise
        except UnavailableError as error:
            await self._wait(run, f"waiting: {error.detail}")
            raise
        except TriforgeError as error:
            log.exception("run %s failed", run.id)
            await self._set(run, "failed", f"{error.kind}: {error.detail}")
        except Exception as error:
            log.exception("run %s failed", run.id)
            await self._set(run, "failed", f"internal: {type(error).__name__}: {error}")
        self._said = None
        await self._told[1].update()
        await self._told[1].close()
        self._told = ("", Reporting())
        state = await asyncio.to_thread(parts.store.get, run.id)
        await parts.emit("run", run.id, status=state.status, step=state.step, reason=state.reason)

    async def _set(self, run: RunState, status: RunStatus, reason: str = "") -> None:
        """End the run; its jobs that are still in the queues are dropped by the workers."""
        await asyncio.to_thread(self._parts.store.status, run.id)  # is it still ours to end?
        with contextlib.suppress(TriforgeError):  # they only cost time
            await self._parts.broker.end_run(run.id)
        await asyncio.to_thread(self._parts.store.set_status, run.id, status, reason)
        ENDED_RUNS.labels(status).inc()
        log.info("the run is %s%s", status, f": {reason}" if reason else "")

    async def _tell_of(self, run: RunState, config: RunConfig) -> None:
        """Have the run's dashboards; those of a run that waits for a service stay open."""
        if self._told[0] != run.id:
            await self._told[1].close()
            steps = partial(self._parts.store.steps_after, run.id)
            reporting = Reporting.of(run, config, self._parts.artifacts, steps)
            self._told = (run.id, reporting)

    async def _wait(self, run: RunState, reason: str) -> None:
        """Say once what the run waits for, if there is anybody to say it to."""
        if self._said == (run.id, reason):
            return
        self._said = (run.id, reason)
        with contextlib.suppress(TriforgeError):
            await asyncio.to_thread(self._parts.store.say, run.id, reason)
            await self._parts.emit("run", run.id, status=run.status, step=run.step, reason=reason)

    async def _loop(self, run: RunState, config: RunConfig) -> None:
        parts = self._parts

        async def check() -> None:
            if await asyncio.to_thread(parts.store.status, run.id) == "stopping":
                raise StopRequested

        await check()  # before any room is asked: a run can be stopped while one is away
        await parts.broker.begin_run(run.id)
        collector = Collector(
            parts.broker,
            resend_s=parts.settings.resend_s,
            lease_s=parts.settings.lease_s,
            check=_seldom(check),
        )
        publisher = Publisher(parts.broker, parts.apis, check=_seldom(check))
        weights = RunWeights(parts.store, publisher, run.id, parts.artifacts)
        await weights.begin(config)
        evaluator = Evaluator(parts, collector, run, config)
        intake = Intake(parts, collector, run, config, weights.state)
        runner = StepRunner(parts, collector, intake, publisher, run, config, weights.state)
        if run.step < 0:
            runner.versions = await weights.hold()
            first = StepResult(groups=[])
            _add(first, await evaluator.evaluate(0, runner.versions["policy"]))
            await self._commit(run, 0, runner.versions, first)
            await _tidy(evaluator.tidy())
        for step in range(max(run.step, 0) + 1, config.run.steps + 1):
            await check()
            runner.versions = await weights.hold()
            await intake.hold(runner.versions, step - 1)
            with about(step=step, **names_of(runner.versions)), tracing.span("step"):
                result = await runner.run(step)
            if _evaluates(config, step):
                _add(result, await evaluator.evaluate(step, runner.versions["policy"]))
            notes = await intake.free(runner.versions)
            await self._commit(run, step, runner.versions, result, notes)
            await _tidy(runner.tidy(result))
            await _tidy(evaluator.tidy())
        # rows of a step whose orchestrator died between its commit and the tidying
        await _tidy(asyncio.to_thread(parts.artifacts.delete, f"runs/{run.id}/batches"))
        await self._set(run, "finished")

    async def _commit(
        self,
        run: RunState,
        step: int,
        versions: dict[TrainedRole, int],
        result: StepResult,
        notes: dict[str, Any] | None = None,
    ) -> None:
        measures = result.measures
        record = RunStep(
            run_id=run.id, step=step, at=time.time(), policy_version=versions["policy"],
            reward_version=versions["reward"], metrics=measures, artifacts=result.artifacts,
        )  # fmt: skip
        await asyncio.to_thread(self._parts.store.commit_step, record, notes)
        STEPS.show(record, run.pool_id)
        PROGRESS.set_to_current_time()
        with about(step=step, **names_of(versions)):
            told = [f"{name} {measures[name]:.4g}" for name in _TOLD if name in measures]
            log.info("step %d is committed: %s", step, ", ".join(told))
        await self._told[1].update()
        await self._parts.emit("step", run.id, step=step, metrics=measures, versions=dict(versions))


def names_of(versions: Mapping[TrainedRole, int]) -> dict[str, int]:
    """Weight versions under the names that log lines have for them."""
    return {"policy": versions["policy"], "reward": versions["reward"]}


def _seldom(check: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """The same check for whoever asks hundreds of times a second: at most one question to the database in `_CHECK_S`."""
    asked = -math.inf

    async def checked() -> None:
        nonlocal asked
        if time.monotonic() - asked >= _CHECK_S:
            asked = time.monotonic()
            await check()

    return checked


async def _tidy(work: Coroutine[Any, Any, None]) -> None:
    """What is left behind costs space for a while; it must not cost a run whose step is committed."""
    try:
        await work
    except TriforgeError as error:
        log.warning("leftovers stay: %s", error.detail)


def _add(result: StepResult, evaluation: Evaluation) -> None:
    result.measures |= evaluation.measures
    result.artifacts |= evaluation.artifacts


def _evaluates(config: RunConfig, step: int) -> bool:
    every = config.run.eval_every
    return every > 0 and (step % every == 0 or step == config.run.steps)
