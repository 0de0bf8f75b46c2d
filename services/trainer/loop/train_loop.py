"""The training loop of one run: every step is committed before the next begins.

    plan ─► play, judge ─► credit ─► train (loss, update) ─► publish ─► adapt ─► record ─► evaluate ─► commit

| phase    | consumes           | waits for                    | produces                 | after a crash                 |
|----------|--------------------|------------------------------|--------------------------|-------------------------------|
| play     | the run's pool     | rollout and judge workers    | judged groups            | finished groups are reused    |
| credit   | judged groups      | -                            | rows, records            | computed again, same numbers  |
| train    | rows               | each model's learner         | weight folders           | an existing version is reused |
| publish  | weight folders     | policy services              | engines that serve them  | repeated, same versions       |
| adapt    | judged groups      | -                            | outcomes for the rewriter | counted once by group id     |
| record   | records            | artifact store               | a file                   | written again                 |
| evaluate | held-out tasks     | rollout workers              | success rates            | finished groups are reused    |
| commit   | everything above   | database                     | a row; the run's step moves | the step is in or it is not |

Each phase but commit is a measure `seconds/<phase>`. Rounds of later steps may be played meanwhile: see `triforge.rollout.window`. Step 0 evaluates before any training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.trainer.credit.options import SampleOptions
from services.trainer.credit.samples import Samples, build_samples, learnable
from services.trainer.credit.step_records import origin_of
from services.trainer.loop.collector import Collector
from services.trainer.loop.credit_reports import arrival
from services.trainer.loop.engines import Engines
from services.trainer.loop.evaluation import Evaluator
from services.trainer.loop.gauges import STALENESS
from services.trainer.loop.hooks import Methods
from services.trainer.loop.in_flight import InFlight
from services.trainer.loop.learners import Learners
from services.trainer.loop.measures import (
    VoteHistory,
    entropy_share,
    learner_measures,
    phase,
    sample_measures,
    step_measures,
)
from services.trainer.loop.parts import Parts, StopRequested, clean_up, seldom
from services.trainer.loop.run_record import RunRecord
from services.trainer.loop.task_source import TaskSource
from triforge.algorithms.schedules import vote_share
from triforge.config import RunConfig
from triforge.environments.trainable import demand_known_success
from triforge.telemetry import about, tracing
from triforge.types import JudgedGroup, RunState


class TrainLoop:
    """The training of one run, from its first step that is not committed to its last. `check` raises if the run is to stop."""

    def __init__(
        self,
        parts: Parts,
        run: RunState,
        config: RunConfig,
        record: RunRecord,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts, self._run, self._config = parts, run, config
        self._record, self._check = record, check
        self._algorithm = config.algorithm.resolved
        self._engines = Engines(parts, run.id)
        self._in_flight = InFlight(
            parts.broker,
            resend_s=parts.settings.resend_s,
            lease_s=parts.settings.lease_s,
            check=seldom(check),
            newest=self._engines.newest,
            arrived=arrival(parts, run, config, lambda: self._options(self._collector.next)),
        )
        self._tasks = TaskSource(parts, run, config)

    async def run(self) -> str:
        """Take the remaining steps; return why the run ended before its last step, empty if it did not.

        Raises:
            TriforgeError: a step failed.
            StopRequested: from `check`, or from a method.
        """
        await self._begin()
        if self._run.step < 0:
            versions = await self._engines.hold()
            evaluation = await self._evaluator.evaluate(0, versions)
            measures = await self._methods.after_step(0, evaluation.measures)
            await self._record.commit(
                0, self._engines.notes, versions, measures, evaluation.artifacts, evaluation.lines
            )
            await clean_up(self._evaluator.discard())
            self._stop_if_asked()
        for step in range(max(self._run.step, 0) + 1, self._config.run.steps + 1):
            if self._methods.ended:
                break
            await self._check()
            versions = await self._engines.hold(self._methods.refused)
            await self._methods.begin(step, versions)
            await self._collector.resume(versions, step - 1)
            with about(step=step, policy=versions["policy"], reward=versions["reward"]):
                groups = await self._step(step)
            await clean_up(self._in_flight.discard(groups))
            await clean_up(self._learners.discard())
            await clean_up(self._evaluator.discard())
            self._stop_if_asked()
        if self._methods.refused:
            await self._engines.hold(self._methods.refused)
        # an orchestrator may have been killed between a commit and the deletion of its rows
        rows = f"runs/{self._run.id}/batches"
        await clean_up(asyncio.to_thread(self._parts.artifacts.delete, rows))
        return self._methods.ended

    def _options(self, step: int) -> SampleOptions:
        trust = self._votes.trust(step)
        share = vote_share(step, self._algorithm.vote_steps) * self._methods.trust(step)
        return SampleOptions.of(self._config, step, self._engines.versions, trust, share)

    def _stop_if_asked(self) -> None:
        if self._methods.stop:
            raise StopRequested(self._methods.stop)

    async def _begin(self) -> None:
        """Read the notes of the run, and make the parts that work with them."""
        await self._engines.begin(self._config)
        parts, run, config, notes = self._parts, self._run, self._config, self._engines.notes
        self._learners = Learners(parts, run.id, config, notes, seldom(self._check))
        self._collector = Collector(parts, self._in_flight, run, config, notes, self._tasks.plan)
        self._votes = VoteHistory(notes, self._algorithm)
        self._methods = Methods(parts, run.id, config, notes)
        self._evaluator = Evaluator(parts, self._tasks, self._in_flight, run, config, self._methods)

    async def _step(self, step: int) -> list[JudgedGroup]:
        """Take one step of training; repeated, it gives the same result. Return its groups."""
        measures: dict[str, float] = {}
        with tracing.span("step"):
            options = self._options(step)
            with phase("play", measures):
                rounds = self._collector.window.open_rounds()
                playing = await self._tasks.plan(filter(self._methods.plays, rounds))
                tasks = {number: playing.get(number, []) for number in rounds}
                groups = await self._collector.collect(tasks)
                demand_known_success(self._config, groups)
                groups += await self._refill(step, groups, options)
            with phase("credit", measures):
                samples = build_samples(groups, options)
                measures |= await self._methods.more_samples(step, groups, samples)
                measures |= self._measure(step, groups, samples)
            # groups of later rounds land meanwhile
            async with self._in_flight.receiving(), self._engines.lent():
                with phase("train", measures):
                    trained = await self._learners.train(
                        step, samples.rows, self._engines.versions, self._methods.batch
                    )
                with phase("publish", measures):
                    versions = await self._engines.update_weights(trained)
            with phase("adapt", measures):
                await self._tasks.adapt(groups, self._collector.offers)
            with phase("record", measures):
                origin = origin_of(self._config, **{str(step): options.numbers})
                artifacts = await self._record.write(step, samples.records, origin)
        due = await self._methods.evaluates(step)
        evaluation = await self._evaluator.evaluate(step, versions, due=due)
        measures |= learner_measures(trained) | self._collector.measures() | evaluation.measures
        measures |= entropy_share(self._engines.notes, measures)
        measures = await self._methods.after_step(step, measures)
        self._collector.advance(versions)
        notes, artifacts = self._engines.notes, artifacts | evaluation.artifacts
        success = evaluation.measures.get("eval/sampled", -1.0)
        if success >= max(0.0, notes.get("best", {}).get("success", 0.0)):
            notes["best"] = {"success": success, "versions": dict(versions)}
        lines = samples.lines + evaluation.lines
        await self._record.commit(step, notes, versions, measures, artifacts, lines)
        return groups

    async def _refill(
        self, step: int, groups: list[JudgedGroup], options: SampleOptions
    ) -> list[JudgedGroup]:
        """Return groups in addition to the batch: replacements of groups that teach nothing, at most `refills` times, and groups of methods."""
        more: list[JudgedGroup] = []
        wanted, useful = learnable(groups, options) if self._algorithm.refills else (0, 0)
        for number in range(1, self._algorithm.refills + 1):
            if useful >= wanted:
                break
            tasks = await self._tasks.refill(step, number, wanted - useful)
            drawn = await self._collector.refill(tasks)
            demand_known_success(self._config, drawn)
            useful += learnable(drawn, options)[1]
            more += drawn
        extra = await self._methods.more_groups(step, groups + more)
        return more + (await self._collector.refill(extra) if extra else [])

    def _measure(self, step: int, groups: list[JudgedGroup], samples: Samples) -> dict[str, float]:
        algorithm = self._algorithm
        low, high = algorithm.alpha_low, algorithm.alpha_high
        measures = step_measures(groups, alpha_low=low, alpha_high=high) | sample_measures(samples)
        for role, ages in samples.ages.items():
            STALENESS.add(role, ages)
        if algorithm.needs_votes and self._config.reward.chosen.casts_votes:
            measures |= self._votes.measure(step, groups)
        return measures
