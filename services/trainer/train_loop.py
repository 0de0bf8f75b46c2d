"""One training step of one run, from the plan to the live weights."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from services.trainer.auxiliary_rows import AuxiliaryMaker
from services.trainer.collector import Batch, Intake
from services.trainer.gauges import PROGRESS, PUBLISHED, STALENESS
from services.trainer.in_flight import Collector
from services.trainer.learners import Published, Publisher
from services.trainer.measures import (
    estimates,
    step_measures,
    theory_measures,
    vote_counts,
)
from services.trainer.outcomes import task_outcome
from services.trainer.parts import Parts
from services.trainer.rollback import Versions
from services.trainer.samples import Ledger, Limits, keep_ledger
from services.trainer.together import together
from services.trainer.vote_memory import VoteMemory
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import vote_weight
from triforge.algorithms.off_policy import staleness_measures
from triforge.config import LearnerSection, RunConfig
from triforge.rollout.seeds import nth_seed
from triforge.store.ledgers import write_ledger
from triforge.store.rows import write_rows
from triforge.telemetry import tracing
from triforge.types import (
    JudgedGroup,
    RunState,
    TrainBatch,
    TrainedRole,
    TrainRow,
)


@dataclass(slots=True)
class StepResult:
    """What a step leaves behind."""

    groups: list[JudgedGroup]
    measures: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    batches: list[TrainBatch] = field(default_factory=list)


class StepRunner:
    """Runs the training steps of one run and knows the versions they start from.

    Args:
        parts: stores, clients, events.
        collector: plays and judges groups.
        intake: what the run has in flight; gives the batches.
        publisher: trains and publishes.
        run: the run as it was taken up.
        config: its config.
        state: the orchestrator's notes (initial folders, base versions).

    Attributes:
        versions: what the services serve; set before each step, moved by it.
    """

    def __init__(
        self,
        parts: Parts,
        collector: Collector,
        intake: Intake,
        publisher: Publisher,
        run: RunState,
        config: RunConfig,
        state: dict[str, Any],
    ) -> None:
        self._parts = parts
        self._collector = collector
        self._intake = intake
        self._publisher = publisher
        self._run = run
        self._config = config
        self._state = state
        self._algorithm: Algorithm = config.algorithm.resolved()
        self._memory = VoteMemory(state, self._algorithm)
        self._auxiliary = AuxiliaryMaker(config, state["paths"]["policy"])
        self.versions: dict[TrainedRole, int] = dict(state["base"])

    async def run(self, step: int) -> StepResult:
        """Play, judge, credit, train, publish, adapt. Repeating a step gives the same result."""
        result = StepResult(groups=[])
        clock = _Clock(result.measures)
        counted = Counted.of(self._collector)
        with clock.phase("play"):
            await self._intake.fill()
            batch = await self._intake.batch()
        result.groups = batch.groups
        result.measures |= batch.measures
        with clock.phase("credit"):
            self._weigh(step, result)
            ledger = self._ledger(step, result.groups)
            beside = await asyncio.to_thread(
                self._auxiliary.rows, step, result.groups, trained=ledger.reasons["trained"]
            )
            result.measures |= beside.measures
            policy = [*ledger.policy_rows, *beside.rows]
            result.batches = [
                *await self._batch("policy", step, policy, self._config.trainer.policy),
                *await self._batch("reward", step, ledger.reward_rows, self._config.trainer.reward),
            ]
            self._measure(result, ledger)
        published = await self._collector.meanwhile(self._train(result, clock))
        await self._settle({role: out.ready.version for role, out in published.items()})
        with clock.phase("adapt"):
            await self._adapt(batch)
        with clock.phase("record"):
            result.artifacts["ledger"] = await asyncio.to_thread(
                write_ledger,
                self._parts.artifacts,
                f"runs/{self._run.id}/steps/{step:05d}.parquet",
                ledger.records,
            )
        result.measures |= counted.since(self._collector)
        return result

    async def _train(self, result: StepResult, clock: _Clock) -> dict[TrainedRole, Published]:
        """Let the learners take their step and put their weights live."""
        with clock.phase("train"):
            published = await self._publisher.train(
                result.batches, deadline_s=self._config.run.step_deadline_s
            )
        with clock.phase("publish"):
            for role, out in published.items():
                ready = out.ready
                self._collector.newest[role] = ready.version  # from now on it may play
                await self._publisher.serve(
                    role, version=ready.version, uri=ready.uri, digest=ready.digest
                )
                await asyncio.to_thread(
                    self._parts.store.add_weights,
                    self._run.id,
                    role,
                    ready.version,
                    ready.uri,
                    ready.digest,
                )
                result.measures |= _learner_measures(
                    role, ready.report.metrics if ready.report else {}
                )
                result.measures[f"seconds/train_{role}"] = out.seconds
                PUBLISHED.labels(role).set_to_current_time()
        return published

    @property
    def _adapts(self) -> bool:
        return self._config.adaptation.controller != "none"

    def _weigh(self, step: int, result: StepResult) -> None:
        """Measure what the votes are worth, and note it for the steps to come; the commit stores the notes."""
        if not self._algorithm.needs_votes or self._config.reward.kind == "unit_tests":
            return
        counts = vote_counts(result.groups, lam=self._algorithm.lam)
        self._memory.remember(step, counts)
        trust = self._memory.trust(step)
        result.measures |= theory_measures(counts, algorithm=self._algorithm)
        result.measures |= estimates("votes/recent", self._memory.estimate(step))
        result.measures |= {
            "votes/trust": trust,
            "votes/weight": vote_weight(trust, algorithm=self._algorithm),
        }

    def _ledger(self, step: int, groups: list[JudgedGroup]) -> Ledger:
        trainer = self._config.trainer
        return keep_ledger(
            groups,
            algorithm=self._algorithm,
            policy_version=self.versions["policy"],
            reward_version=self.versions["reward"],
            policy_limits=Limits(
                max_tokens=trainer.policy.max_tokens,
                max_rows=trainer.policy.max_rows,
                bound=self._config.run.staleness_bound,
                response=self._config.models.policy.max_new_tokens,
            ),
            reward_limits=Limits(
                max_tokens=trainer.reward.max_tokens,
                max_rows=trainer.reward.max_rows,
                bound=self._config.vote_bound,
                response=self._config.models.reward.max_new_tokens,
            ),
            seed=nth_seed(self._config.run.seed, step),
            trust=self._memory.trust(step),
            step=step,
            min_measured=self._config.run.min_measured,
            drop_stale_votes=self._config.run.stale_votes == "drop",
        )

    async def _batch(
        self, role: TrainedRole, step: int, rows: list[TrainRow], learner: LearnerSection
    ) -> list[TrainBatch]:
        """The batch as a list of one, or none when there is nothing to learn from."""
        if not rows:
            return []
        key = f"runs/{self._run.id}/batches/{step:05d}-{role}.parquet"
        uri = await asyncio.to_thread(write_rows, self._parts.artifacts, key, rows)
        model = getattr(self._config.models, role)
        config, policy = self._config, role == "policy"
        algorithm = self._algorithm if policy else self._algorithm.of_reward_model()
        return [
            TrainBatch(
                batch_id=f"{self._run.id}-{step:05d}-{role}",
                run_id=self._run.id,
                role=role,
                step=step,
                version=self.versions[role],
                uri=uri,
                num_rows=len(rows),
                num_tokens=sum(len(row.ids) for row in rows),
                model_path=self._state["paths"][role],
                algorithm=algorithm,
                learner=learner,
                critic=config.trainer.critic,
                auxiliary=config.trainer.aux,
                auxiliary_weights=self._auxiliary.weights(step) if policy else {},
                staleness_bound=config.run.staleness_bound,
                temperature=model.temperature,
                seed=config.run.seed,
                base_version=self._state["base"][role],
                folder_version=await asyncio.to_thread(self._folder_of, role),
                keep=config.run.keep_checkpoints,
            )
        ]

    def _folder_of(self, role: TrainedRole) -> int | None:
        """The number under which what serves now was written; None for the initial folder."""
        found = self._parts.store.find_weights(self._run.id, role, self.versions[role])
        mine = Versions(self._parts.store, self._parts.artifacts, self._run.id, role)
        return mine.folder_number(found[0]) if found else None

    def _measure(self, result: StepResult, ledger: Ledger) -> None:
        algorithm = self._algorithm
        result.measures |= step_measures(
            result.groups, alpha_low=algorithm.alpha_low, alpha_high=algorithm.alpha_high
        )
        result.measures["rows/policy"] = float(len(ledger.policy_rows))
        result.measures["rows/reward"] = float(len(ledger.reward_rows))
        result.measures["groups/partial"] = float(ledger.partial)
        result.measures["groups/voteless"] = float(ledger.voteless)
        result.measures["groups/dead"] = float(ledger.dead)
        if ledger.asked:
            result.measures["groups/dead_share"] = ledger.dead / ledger.asked
        STALENESS.add("policy", ledger.policy_ages)
        STALENESS.add("reward", ledger.reward_ages)
        for role, ages in (("policy", ledger.policy_ages), ("reward", ledger.reward_ages)):
            for name, value in staleness_measures(ages).items():
                result.measures[f"staleness/{role}/{name}"] = value
        for reason, count in ledger.reasons.items():
            result.measures[f"steps/{reason}"] = float(count)

    async def _settle(self, trained: dict[TrainedRole, int]) -> None:
        """Take over the published versions.

        A role without rows keeps the one it has, unless the step published one for it before it was interrupted and its
        samples were lost. What somebody else has published is not taken over.
        """
        self.versions |= trained
        for role in self.versions.keys() - trained.keys():
            live = await self._publisher.live(role)
            known = await asyncio.to_thread(
                self._parts.store.find_weights, self._run.id, role, live.version
            )
            if known and known[0] == live.uri and live.version > self.versions[role]:
                self.versions[role] = live.version

    async def _adapt(self, batch: Batch) -> None:
        """Tell adaptation how each group went. The groups of a pair have the same round and versions of the same offer."""
        if not self._adapts:
            return
        offers = ((group, batch.offers[group.played.group.group_id]) for group in batch.groups)
        outcomes = (
            task_outcome(group, offer, run=self._run, config=self._config)
            for group, offer in offers
        )
        await together(
            self._parts.broker.send_adapt(outcome)
            for outcome in outcomes
            if outcome.measured or outcome.proposal_id  # a lost half of a pair is on record
        )

    async def tidy(self, result: StepResult) -> None:
        """Delete what the committed step no longer needs: payloads in flight and the learners' copies of the rows."""
        await together(
            self._parts.broker.retire_group(
                group.played.group.group_id, tuple(t.id for t in group.played.trajectories)
            )
            for group in result.groups
        )
        for batch in result.batches:
            await asyncio.to_thread(self._parts.artifacts.delete, batch.uri)


def _learner_measures(role: TrainedRole, metrics: dict[str, float]) -> dict[str, float]:
    prefix = "policy" if role == "policy" else "reward"
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {f"{prefix}/{name}": value for name, value in finite.items()}


@dataclass(frozen=True, slots=True)
class Counted:
    """What a collector has counted up to a moment."""

    resent: int
    replayed: int
    overlap_s: float

    @staticmethod
    def of(collector: Collector) -> Counted:
        """Now."""
        return Counted(collector.resent, collector.replayed, collector.overlap_s)

    def since(self, collector: Collector) -> dict[str, float]:
        """What came on top of it by now, as measures."""
        return {
            "resent": float(collector.resent - self.resent),
            "replayed": float(collector.replayed - self.replayed),
            "seconds/overlap": collector.overlap_s - self.overlap_s,
        }


class _Clock:
    """Writes the seconds of each phase into the measures."""

    def __init__(self, measures: dict[str, float]) -> None:
        self._measures = measures
        self._name = ""
        self._started = 0.0
        self._span: AbstractContextManager[Any] = nullcontext()

    def phase(self, name: str) -> _Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._span = tracing.span(self._name)
        self._span.__enter__()
        self._started = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._span.__exit__(kind, error, trace)
        self._measures[f"seconds/{self._name}"] = time.monotonic() - self._started
        PROGRESS.set_to_current_time()
