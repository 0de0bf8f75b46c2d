"""The training loop: one step after another, each recorded before the next begins.

    plan ─► collect ─► build samples ─► train ─► update weights ─► adapt ─► commit

| part           | consumes           | waits for                 | produces                     | after a crash                  |
|----------------|--------------------|---------------------------|------------------------------|--------------------------------|
| plan           | the run's pool     | env_adapter               | the groups of a round        | the stored plan is read again  |
| collect        | groups             | rollout and judge workers | judged groups                | finished groups are reused     |
| build samples  | judged groups      | -                         | rows, records                | computed again, same numbers   |
| train          | rows               | each model's learner      | weight folders               | an existing version is reused  |
| update weights | weight folders     | policy services           | active versions              | repeated, same versions        |
| adapt          | judged groups      | -                         | outcomes                     | counted once by group id       |
| commit         | everything above   | database                  | one row; the run's step moves | the step is either in or not  |
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from services.trainer.auxiliary_rows import AuxiliaryMaker
from services.trainer.collector import Collector
from services.trainer.engines import Engines
from services.trainer.evaluation import Evaluation, Evaluator
from services.trainer.gauges import STALENESS
from services.trainer.in_flight import InFlight
from services.trainer.learners import Learners
from services.trainer.measures import (
    VoteHistory,
    learner_measures,
    phase,
    sample_measures,
    step_measures,
)
from services.trainer.parts import Parts
from services.trainer.rows import Limits
from services.trainer.run_record import RunRecord
from services.trainer.samples import SampleOptions, Samples, build_samples
from services.trainer.task_source import TaskSource
from triforge.config import LearnerSection, RunConfig
from triforge.errors import TriforgeError
from triforge.rollout.seeds import nth_seed
from triforge.telemetry import about, tracing
from triforge.types import JudgedGroup, RunState, TrainedRole

log = logging.getLogger(__name__)

_CHECK_S = 0.25  # how often a step that waits looks whether it was asked to stop


class TrainLoop:
    """The training of one run, from its first step that is not committed to its last.

    Args:
        parts: stores, broker, clients.
        run: the run as it was taken up.
        config: its config.
        record: where steps are committed.
        check: raises when the run is to stop.
    """

    def __init__(
        self,
        parts: Parts,
        run: RunState,
        config: RunConfig,
        record: RunRecord,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts, self._run, self._config = parts, run, config
        self._store, self._check = record, check
        self._algorithm = config.algorithm.resolved()
        self._engines = Engines(parts, run.id)
        self._in_flight = InFlight(
            parts.broker,
            resend_s=parts.settings.resend_s,
            lease_s=parts.settings.lease_s,
            check=_seldom(check),
            newest=self._engines.newest,
        )
        self._env = TaskSource(parts, run, config)
        self._evaluator = Evaluator(parts, self._env, self._in_flight, run, config)

    async def run(self) -> None:
        """Take the steps that are left.

        Raises:
            TriforgeError: a step cannot be taken.
            StopRequested: from `check`.
        """
        await self._begin()
        if self._run.step < 0:
            versions = await self._engines.hold()
            evaluation = await self._evaluator.evaluate(0, versions["policy"])
            await self._store.commit(0, None, versions, evaluation.measures, evaluation.artifacts)
            await _leave(self._evaluator.discard())
        for step in range(max(self._run.step, 0) + 1, self._config.run.steps + 1):
            await self._check()
            versions = await self._engines.hold()
            await self._collector.resume(versions, step - 1)
            with about(step=step, policy=versions["policy"], reward=versions["reward"]):
                groups = await self._step(step)
            await _leave(self._collector.discard(groups))
            await _leave(self._learners.discard())
            await _leave(self._evaluator.discard())
        # rows of a step whose orchestrator died between its commit and the cleaning up
        rows = f"runs/{self._run.id}/batches"
        await _leave(asyncio.to_thread(self._parts.artifacts.delete, rows))

    async def _begin(self) -> None:
        """Read the notes of the run, and make what works with them."""
        await self._engines.begin(self._config)
        notes = self._notes = self._engines.notes
        self._learners = Learners(
            self._parts, self._run.id, self._config, notes, _seldom(self._check)
        )
        self._collector = Collector(
            self._parts, self._in_flight, self._run, self._config, notes, self._env.plan
        )
        self._votes = VoteHistory(notes, self._algorithm)
        self._auxiliary = AuxiliaryMaker(self._config, notes["paths"]["policy"])

    async def _step(self, step: int) -> list[JudgedGroup]:
        """Play, judge, credit, train, publish, adapt, commit. Repeating a step gives the same result."""
        measures: dict[str, float] = {}
        with tracing.span("step"):
            with phase("play", measures):
                tasks = await self._env.plan(self._collector.open_rounds())
                groups = await self._collector.collect(tasks)
            with phase("credit", measures):
                samples = build_samples(groups, self._sample_options(step))
                measures |= await self._add_auxiliary(step, groups, samples)
                measures |= self._measure(step, groups, samples)
            async with self._collector.receiving():  # groups of later rounds come in meanwhile
                with phase("train", measures):
                    trained = await self._learners.train(
                        step, samples.rows, self._engines.versions, self._auxiliary.weights(step)
                    )
                with phase("publish", measures):
                    versions = await self._engines.update_weights(trained)
            with phase("adapt", measures):
                await self._env.adapt(groups, self._collector.offers())
            with phase("record", measures):
                artifacts = await self._store.write(step, samples.records)
            measures |= learner_measures(trained) | self._collector.measures()
        evaluation = await self._evaluate(step, versions)
        self._collector.publish(versions)
        await self._store.commit(
            step, self._notes, versions, measures | evaluation.measures,
            artifacts | evaluation.artifacts,
        )  # fmt: skip
        return groups

    def _sample_options(self, step: int) -> SampleOptions:
        """The arithmetic of a step, and the weights that it trains."""
        config = self._config
        return SampleOptions(
            algorithm=self._algorithm,
            policy_version=self._engines.versions["policy"],
            reward_version=self._engines.versions["reward"],
            policy_limits=_limits(
                config.trainer.policy,
                config.run.staleness_bound,
                config.models.policy.max_new_tokens,
            ),
            reward_limits=_limits(
                config.trainer.reward, config.vote_bound, config.models.reward.max_new_tokens
            ),
            seed=nth_seed(config.run.seed, step),
            trust=self._votes.trust(step),
            step=step,
            min_measured=config.run.min_measured,
            drop_stale_votes=config.run.stale_votes == "drop",
        )

    async def _add_auxiliary(
        self, step: int, groups: list[JudgedGroup], samples: Samples
    ) -> dict[str, float]:
        """Put the rows of auxiliary objectives beside the policy's samples; returns their measures."""
        trained = samples.reasons["trained"]
        found = await asyncio.to_thread(self._auxiliary.rows, step, groups, trained=trained)
        samples.rows["policy"] += found.rows
        return found.measures

    def _measure(self, step: int, groups: list[JudgedGroup], samples: Samples) -> dict[str, float]:
        algorithm = self._algorithm
        measures = step_measures(
            groups, alpha_low=algorithm.alpha_low, alpha_high=algorithm.alpha_high
        )
        measures |= sample_measures(samples)
        for role, ages in samples.ages.items():
            STALENESS.add(role, ages)
        if algorithm.needs_votes and self._config.reward.kind != "unit_tests":
            measures |= self._votes.measure(step, groups)
        return measures

    async def _evaluate(self, step: int, versions: Mapping[TrainedRole, int]) -> Evaluation:
        return await self._evaluator.evaluate(step, versions["policy"])


def _limits(learner: LearnerSection, bound: int, response: int) -> Limits:
    return Limits(
        max_tokens=learner.max_tokens, max_rows=learner.max_rows, bound=bound, response=response
    )


def _seldom(check: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """The same check for whoever asks hundreds of times a second: at most one question to the database in `_CHECK_S`."""
    asked = -math.inf

    async def checked() -> None:
        nonlocal asked
        if time.monotonic() - asked >= _CHECK_S:
            asked = time.monotonic()
            await check()

    return checked


async def _leave(work: Coroutine[Any, Any, None]) -> None:
    """Clean up. What is left behind costs space for a while; it must not cost a run whose step is committed."""
    try:
        await work
    except TriforgeError as error:
        log.warning("leftovers stay: %s", error.detail)
