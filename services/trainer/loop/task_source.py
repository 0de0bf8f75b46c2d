"""What a run plays, round by round, and what adaptation hears of it: the loop's side of env_adapter."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from services.trainer.credit.judged_groups import accepted, played_by
from services.trainer.loop.measures import level_measures
from services.trainer.loop.parts import Parts
from triforge.algorithms.credit import accuracy
from triforge.algorithms.filters import rewrite_direction
from triforge.config import RunConfig
from triforge.event_loop import together
from triforge.rollout.seeds import derive_seed, nth_seed
from triforge.rollout.window import Offer
from triforge.types import (
    AdaptSettings,
    DiagnosisNote,
    GroupTask,
    JudgedGroup,
    PlannedGroup,
    PlanRequest,
    Player,
    RunState,
    TaskOutcome,
    Trajectory,
    Vote,
)

_JUDGE_TEXT = 600  # characters of a vote that the diagnosis may read
_JUDGED_STEPS = 12  # steps of a trajectory with such texts


class TaskSource:
    """The tasks of one run. A round is one plan; it is drawn once, so its groups can be built again any time."""

    def __init__(self, parts: Parts, run: RunState, config: RunConfig) -> None:
        self._parts, self._run, self._config = parts, run, config

    async def plan(self, rounds: Iterable[int]) -> dict[int, list[GroupTask]]:
        """The groups of rounds, counted from 1; the same every time."""
        return {number: await self._round(number) for number in rounds}

    async def _round(self, number: int) -> list[GroupTask]:
        config, adaptation = self._config, self._config.adaptation
        asked = {"adopt": adaptation.adopt_pending, "pairs_on_top": adaptation.pairs_on_top}
        plan = await self._draw_training(number, config.run.groups_per_step, **asked)
        seeds = [nth_seed(config.run.seed, number, index) for index in range(len(plan))]
        return self._training(number, "train", plan, seeds)

    async def refill(self, step: int, number: int, groups: int) -> list[GroupTask]:
        """The `number`-th draw, from 1, of groups in the place of some of a step's; the same every time, perhaps none."""
        plan, name = await self._draw_training(step, groups, refill=number), f"refill{number}"
        run = self._config.run
        seeds = [derive_seed(run.seed, name, step, index) for index in range(len(plan))]
        return self._training(step, name, plan, seeds)

    async def _draw_training(self, step: int, groups: int, **how: Any) -> list[PlannedGroup]:
        adaptation = self._config.adaptation
        pending = adaptation.max_pending if adaptation.rewrites else 0
        how |= {"max_pending": pending, "max_adapted": adaptation.max_adapted}
        return await self._draw("train", step, groups, **how)

    def _training(
        self, step: int, mode: str, plan: list[PlannedGroup], seeds: list[int]
    ) -> list[GroupTask]:
        config = self._config
        how = {
            "rollouts": config.env_adapter.rollouts,
            "votes": config.votes,
            "show_reference": config.algorithm.resolved.needs_reference,
            "sampling": config.models.policy.sampling(),
            "judge_sampling": config.models.reward.sampling(),
            "agents": players(config),
            "judges": judges(config),
        }
        return self._tasks(step, mode, plan, seeds, **how)

    async def held_out(self, step: int) -> dict[str, list[GroupTask]]:
        """The held-out tasks of an evaluation by mode, each played once; the same seeds every time.

        A difference between two steps is then the policy's.
        """
        run, policy = self._config.run, self._config.models.policy
        plan = await self._draw("evaluate", step, run.eval_tasks)
        seeds, tasks = [nth_seed(run.seed, index) for index in range(len(plan))], {}
        for mode in ("sampled", "greedy") if run.eval_greedy else ("sampled",):
            greedy = mode == "greedy"
            how = {
                "sampling": policy.sampling(greedy=greedy),
                "agents": players(self._config, greedy=greedy),
            }
            tasks[mode] = self._tasks(step, mode, plan, seeds, rollouts=1, **how)
        return tasks

    async def _draw(
        self, kind: Literal["train", "evaluate"], step: int, groups: int, **how: Any
    ) -> list[PlannedGroup]:
        how |= {"run_id": self._run.id, "seed": self._config.run.seed}
        wanted = PlanRequest(step=step, kind=kind, groups=groups, **how)
        return await self._parts.env_adapter.plan(self._run.pool_id, wanted)

    def _tasks(
        self, step: int, mode: str, plan: list[PlannedGroup], seeds: list[int], **how: Any
    ) -> list[GroupTask]:
        return [
            GroupTask(
                group_id=f"{self._run.id}-{step:05d}-{mode}-{index:04d}",
                run_id=self._run.id,
                step=step,
                task_id=group.task_id,
                purpose=group.purpose,
                proposal_id=group.proposal_id,
                seed=seed,
                env_adapter=self._config.env_adapter,
                reward=self._config.reward,
                **how,
            )
            for index, (group, seed) in enumerate(zip(plan, seeds, strict=True))
        ]

    async def adapt(self, groups: Sequence[JudgedGroup], offers: Mapping[str, Offer]) -> None:
        """Submit how each group went. The groups of a pair have the same round and versions of the same offer."""
        run, config = self._run, self._config
        of_pool = [group for group in groups if not group.played.group.recycled]
        named = [(group, offers[group.played.group.group_id]) for group in of_pool]
        outcomes = [task_outcome(group, offer, run=run, config=config) for group, offer in named]
        if config.adaptation.controller == "none":  # there is no adapt worker that would count them
            await asyncio.to_thread(self._parts.store.measure, outcomes)
            return
        await together(
            self._parts.broker.send(outcome)
            for outcome in outcomes
            if outcome.measured or outcome.proposal_id  # a lost half of a pair is on record
        )

    async def levels(self) -> dict[str, float]:
        """Where the run's windows of difficulty levels stand as far as adaptation has come; nothing without the ladder."""
        if not self._config.adaptation.climbs:
            return {}
        tops = await asyncio.to_thread(self._parts.store.ladders, self._run.id)
        return level_measures(tops)


def players(config: RunConfig, *, greedy: bool = False) -> dict[str, Player]:
    """Who plays the agents that the policy does not."""
    known, agents = config.models.players, config.models.agents
    return {
        agent: Player(model=name, sampling=known[name].sampling(greedy=greedy))
        for agent, name in agents.items()
    }


def judges(config: RunConfig) -> dict[str, Player]:
    """Who judges the agents that the reward model does not."""
    known, judged = config.models.judging, config.models.judges
    return {a: Player(model=name, sampling=known[name].sampling()) for a, name in judged.items()}


def task_outcome(
    group: JudgedGroup, offer: Offer, *, run: RunState, config: RunConfig
) -> TaskOutcome:
    """The outcome of a group, before any filter; its round and, if it has no token, its policy version are the offer's."""
    played, algorithm = group.played, config.algorithm.resolved
    successes, measured = accuracy([t.outcome.value for t in played.trajectories])
    direction = rewrite_direction(successes, measured, band=algorithm)
    trains = played.group.purpose == "train"
    notes: tuple[DiagnosisNote, ...] = ()
    if direction and trains and config.adaptation.controller not in ("none", "ladder"):
        notes = diagnosis_notes(
            group, succeeded=direction == "harder", count=config.adaptation.notes
        )
    versions = played_by(group) or {offer.versions[0]}
    scores = [
        trajectory.score for trajectory in played.trajectories if trajectory.score is not None
    ]
    return TaskOutcome(
        group_id=played.group.group_id,
        run_id=run.id,
        step=offer.round,
        pool_id=run.pool_id,
        task_id=played.task.id,
        purpose=played.group.purpose,
        proposal_id=played.group.proposal_id,
        successes=successes,
        measured=measured,
        rollouts=played.group.rollouts,
        policy_version=min(versions),
        newest_version=max(versions),
        score=math.fsum(scores) / len(scores) if scores else None,
        scored=len(scores),
        notes=notes,
        adapt=trains,
        settings=adapt_settings(config),
    )


def adapt_settings(config: RunConfig) -> AdaptSettings:
    """The sections of a run that adaptation reads."""
    gap = config.adaptation.max_version_gap
    return AdaptSettings(
        adaptation=config.adaptation,
        algorithm=config.algorithm.resolved,
        env_adapter=config.env_adapter,
        sampling=config.models.rewriter.sampling(),
        version_gap=config.run.staleness_bound if gap is None else gap,
    )


def diagnosis_notes(
    group: JudgedGroup, *, succeeded: bool, count: int
) -> tuple[DiagnosisNote, ...]:
    """What the diagnosis may read: failures as they come, or the shortest successes."""
    pairs = [
        (trajectory, {v.step: v.votes for v in (votes.steps if votes else ())})
        for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True)
        if trajectory.measured and (trajectory.outcome.value == 1) == succeeded
    ]
    if succeeded:
        pairs.sort(key=lambda pair: len(pair[0].steps))
    return tuple(
        DiagnosisNote(
            trajectory_id=trajectory.id,
            success=succeeded,
            steps=tuple(
                (s.action, s.next_observation, tuple(vote.value for vote in votes.get(s.index, ())))
                for s in trajectory.steps
            ),
            judged=_judged(votes),
            hidden=trajectory.outcome.share,
            written=_written(group, trajectory),
        )
        for trajectory, votes in pairs[:count]
    )


def _judged(by_step: Mapping[int, tuple[Vote, ...]]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """All texts of the steps with a negative vote, clipped: a job is no place for long ones."""
    found = [
        (step, tuple(vote.text[:_JUDGE_TEXT] for vote in votes))
        for step, votes in sorted(by_step.items())
        if any(vote.value == -1 for vote in votes)
    ]
    return tuple(found[:_JUDGED_STEPS])


def _written(group: JudgedGroup, trajectory: Trajectory) -> tuple[int, int] | None:
    """How many of the tests that could be read a program passes; None where it was not run on any."""
    programs = group.tests.programs if group.tests else ()
    rows = [row for row in accepted(group) if row is not None]
    if not rows or trajectory.id not in programs:
        return None
    return sum(row[programs.index(trajectory.id)] for row in rows), len(rows)
