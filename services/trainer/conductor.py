"""The conductor: one training step after another, each recorded before the next begins.

    plan ──► play and judge ──► credit ──► train both ──► publish ──► adapt ──► commit ──► forget payloads

| phase   | consumes                  | waits for                 | produces                             | after a crash                 |
|---------|---------------------------|---------------------------|--------------------------------------|-------------------------------|
| plan    | the run's pool            | env_adapter               | the step's groups                    | the stored plan is read again |
| play    | plan                      | rollout and judge workers | JudgedGroups                         | finished groups are reused    |
| credit  | JudgedGroups              | -                         | rows, ledger, measures               | computed again, same numbers  |
| train   | rows                      | both learners             | weight folders                       | an existing version is reused |
| publish | weight folders            | policy rooms              | live versions                        | repeated, same versions       |
| adapt   | measures                  | -                         | TaskOutcomes                         | counted once by group id      |
| commit  | everything above          | database                  | one row; the run's step moves        | the step is either in or not  |

Nothing is trained twice: a learner that has published version v+1 of a run only announces it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from services.trainer.evaluation import Evaluator
from services.trainer.gather import Gatherer
from services.trainer.parts import Parts, StopRequested
from services.trainer.publish import Publisher
from services.trainer.step import StepRunner
from triforge.config import RunConfig, parse
from triforge.errors import ConfigError, TriforgeError, UnavailableError
from triforge.messages import RunState, RunStep, TrainedRole

log = logging.getLogger(__name__)

_IDLE_S = 0.5  # how often an idle conductor looks for a run
_RETRY_S = 2.0  # pause after a service was unavailable; the run goes on when it is back


class Conductor:
    """Works on one run at a time, oldest first; a run that was interrupted goes first.

    Args:
        parts: everything it talks to.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def run_forever(self) -> None:
        """Serve the queue of runs until cancelled."""
        while True:
            try:
                run = await asyncio.to_thread(self._parts.store.next_runnable)
                if run is None:
                    await asyncio.sleep(_IDLE_S)
                    continue
                await self.conduct(run)
            except UnavailableError as error:
                log.warning("waiting: %s", error.detail)
                await asyncio.sleep(_RETRY_S)

    async def conduct(self, run: RunState) -> None:
        """Bring one run to its end, or to the point where it stops or fails.

        Raises:
            UnavailableError: a service is away; the run stays as it is and is taken up again.
        """
        parts = self._parts
        await self._set(run, "running")
        await parts.emit("run", run.id, status="running", step=run.step)
        try:
            await self._loop(run, parse(run.config))
        except StopRequested:
            await self._set(run, "stopped", "stopped on request")
        except UnavailableError:
            raise
        except TriforgeError as error:
            log.exception("run %s failed", run.id)
            await self._set(run, "failed", f"{error.kind}: {error.detail}")
        except Exception as error:
            log.exception("run %s failed", run.id)
            await self._set(run, "failed", f"internal: {type(error).__name__}: {error}")
        state = await asyncio.to_thread(parts.store.get, run.id)
        await parts.emit("run", run.id, status=state.status, step=state.step, reason=state.reason)

    async def _set(self, run: RunState, status: Any, reason: str = "") -> None:
        if status == "running" and run.status == "stopping":
            return
        await asyncio.to_thread(self._parts.store.set_status, run.id, status, reason)

    async def _check(self, run_id: str) -> None:
        if await asyncio.to_thread(self._parts.store.status, run_id) == "stopping":
            raise StopRequested

    async def _loop(self, run: RunState, config: RunConfig) -> None:
        parts = self._parts

        async def check() -> None:
            await self._check(run.id)

        gatherer = Gatherer(
            parts.wire,
            resend_s=parts.settings.resend_s,
            lease_s=parts.settings.lease_s,
            check=check,
        )
        publisher = Publisher(parts.wire, parts.doors, check=check)
        state = await self._begin(run, config, publisher)
        evaluator = Evaluator(parts, gatherer, run, config)
        runner = StepRunner(parts, gatherer, publisher, run, config, state)
        if run.step < 0:
            measures = await evaluator.evaluate(0)
            await self._commit(run, 0, runner.versions, measures, {})
        for step in range(max(run.step, 0) + 1, config.run.steps + 1):
            await check()
            result = await runner.run(step)
            measures = result.measures
            if _evaluates(config, step):
                measures |= await evaluator.evaluate(step)
            await self._commit(run, step, runner.versions, measures, result.artifacts)
            await runner.tidy(result)
        await self._set(run, "finished")

    async def _begin(
        self, run: RunState, config: RunConfig, publisher: Publisher
    ) -> dict[str, Any]:
        """Bring the rooms to the run's versions: its base the first time, its newest committed ones after a restart."""
        parts = self._parts
        state = await asyncio.to_thread(parts.store.run_state, run.id)
        roles: tuple[tuple[TrainedRole, str], ...] = (
            ("acts", config.models.acts.path),
            ("judges", config.models.judges.path),
        )
        if not state:
            for role, path in roles:
                if not path:
                    raise ConfigError(
                        f"models.{role}.path: given nothing, expected the folder of the {role} model"
                    )
            state = {"paths": dict(roles)}
            state["base"] = {role: await publisher.live_version(role) + 1 for role, _ in roles}
            for role, path in roles:
                await publisher.serve(role, version=state["base"][role], uri=path)
                await asyncio.to_thread(
                    parts.store.add_weights, run.id, role, state["base"][role], path, ""
                )
            base = state["base"]
            await asyncio.to_thread(
                parts.store.begin, run.id, state=state, policy=base["acts"], reward=base["judges"]
            )
        else:
            await self._catch_up(run, publisher)
        return state

    async def _catch_up(self, run: RunState, publisher: Publisher) -> None:
        now = await asyncio.to_thread(self._parts.store.get, run.id)
        versions: dict[TrainedRole, int] = {
            "acts": now.policy_version,
            "judges": now.reward_version,
        }
        for role, version in versions.items():
            live = await publisher.live_version(role)
            if (
                live >= version
            ):  # a step that was published but not committed is repeated with what it published
                continue
            uri, digest = await asyncio.to_thread(self._parts.store.weights, run.id, role, version)
            await publisher.serve(role, version=version, uri=uri, digest=digest)

    async def _commit(
        self,
        run: RunState,
        step: int,
        versions: dict[TrainedRole, int],
        measures: dict[str, float],
        artifacts: dict[str, str],
    ) -> None:
        record = RunStep(
            run_id=run.id, step=step, at=time.time(), policy_version=versions["acts"],
            reward_version=versions["judges"], metrics=measures, artifacts=artifacts,
        )  # fmt: skip
        await asyncio.to_thread(self._parts.store.commit_step, record)
        await self._parts.emit("step", run.id, step=step, metrics=measures, versions=dict(versions))


def _evaluates(config: RunConfig, step: int) -> bool:
    every = config.run.eval_every
    return every > 0 and (step % every == 0 or step == config.run.steps)
