"""The loop's side of env_adapter: the tasks of each round, and their outcomes for adaptation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from services.trainer.credit.judged_groups import group_credit, judges, played_by, players
from services.trainer.loop.parts import Parts
from triforge.algorithms.credit import accuracy
from triforge.config import RunConfig
from triforge.event_loop import together
from triforge.rollout.seeds import derive_seed, nth_seed
from triforge.rollout.window import Offer
from triforge.types import (
    DiagnosisNote,
    GroupTask,
    JudgedGroup,
    PlannedGroup,
    PlanRequest,
    RunState,
    TaskOutcome,
    Trajectory,
    TrajectoryVotes,
)


class TaskSource:
    """The tasks of one run. A round is one plan; it is drawn once, so its groups can be built again at any time."""

    def __init__(self, parts: Parts, run: RunState, config: RunConfig) -> None:
        self._parts, self._run, self._config = parts, run, config

    async def plan(self, rounds: Iterable[int]) -> dict[int, list[GroupTask]]:
        """Return the groups of rounds, counted from 1; the same every time."""
        return {number: await self._round(number) for number in rounds}

    async def _round(self, number: int) -> list[GroupTask]:
        config, adaptation = self._config, self._config.adaptation
        on_top, groups = adaptation.pairs_on_top, config.run.groups_per_step
        plan = await self._draw_training(number, groups, pairs_on_top=on_top)
        seeds = [nth_seed(config.run.seed, number, index) for index in range(len(plan))]
        return self._training(number, "train", plan, seeds)

    async def refill(self, step: int, number: int, groups: int) -> list[GroupTask]:
        """Return the `number`-th draw, from 1, of groups that replace some of a step; the same every time, perhaps none."""
        plan, name = await self._draw_training(step, groups, refill=number), f"refill{number}"
        run = self._config.run
        seeds = [derive_seed(run.seed, name, step, index) for index in range(len(plan))]
        return self._training(step, name, plan, seeds)

    async def _draw_training(self, step: int, groups: int, **how: Any) -> list[PlannedGroup]:
        adaptation = self._config.adaptation
        pending = adaptation.max_pending if adaptation.chosen.rewrites else 0
        return await self._draw("train", step, groups, max_pending=pending, **how)

    def _training(
        self, step: int, mode: str, plan: list[PlannedGroup], seeds: list[int]
    ) -> list[GroupTask]:
        config = self._config
        how = {
            "rollouts": config.env_adapter.rollouts,
            "votes": config.votes,
            "sampling": config.models.policy.sampling(),
            "judge_sampling": config.models.reward.sampling(),
            "agents": players(config),
            "judges": judges(config),
        }
        return self._tasks(step, mode, plan, seeds, **how)

    async def held_out(self, step: int) -> dict[str, list[GroupTask]]:
        """Return the held-out tasks of an evaluation by mode, with the same seeds every time.

        A difference between two steps then comes from the policy.
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
            rollouts = 1 if greedy else run.eval_rollouts
            tasks[mode] = self._tasks(step, mode, plan, seeds, rollouts=rollouts, **how)
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
                extra=self._config.extra,
                **how,
            )
            for index, (group, seed) in enumerate(zip(plan, seeds, strict=True))
        ]

    async def adapt(self, groups: Sequence[JudgedGroup], offers: Mapping[str, Offer]) -> None:
        """Send the outcome of each group. The groups of a pair have the round and versions of the same offer."""
        run, config = self._run, self._config
        of_pool = [group for group in groups if group.played.group.purpose != "method"]
        named = [(group, offers[group.played.group.group_id]) for group in of_pool]
        outcomes = [task_outcome(group, offer, run=run, config=config) for group, offer in named]
        if not config.adaptation.adapts:  # there is no adapt worker that would count them
            await asyncio.to_thread(self._parts.store.measure, outcomes)
            return
        await together(
            self._parts.broker.send(outcome)
            for outcome in outcomes
            if outcome.measured or outcome.proposal_id  # a lost half of a pair is on record
        )


def task_outcome(
    group: JudgedGroup, offer: Offer, *, run: RunState, config: RunConfig
) -> TaskOutcome:
    """Return the outcome of a group before any filter.

    Its round is the offer's, and so is its policy version if the group has no token.
    """
    played = group.played
    successes, measured = accuracy([t.outcome.value for t in played.trajectories])
    read = played.group.purpose == "train" and config.adaptation.chosen.reads_notes
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
        notes=diagnosis_notes(group) if read else (),
    )


def diagnosis_notes(group: JudgedGroup) -> tuple[DiagnosisNote, ...]:
    """Return the measured rollouts of a group as their judges saw them."""
    pairs = zip(group.played.trajectories, group.votes, strict=True)
    return tuple(_note(group, one, votes) for one, votes in pairs if one.measured)


def _note(
    group: JudgedGroup, trajectory: Trajectory, votes: TrajectoryVotes | None
) -> DiagnosisNote:
    by_group = group_credit(group)
    by_step = {one.step: one.votes for one in (votes.steps if votes else ())}
    return DiagnosisNote(
        trajectory_id=trajectory.id,
        success=trajectory.outcome.value == 1,
        steps=tuple(
            (s.action, s.next_observation, tuple(vote.value for vote in by_step.get(s.index, ())))
            for s in trajectory.steps
        ),
        judged=tuple(
            (step, tuple(vote.text for vote in cast))
            for step, cast in sorted(by_step.items())
            if any(vote.value == -1 for vote in cast)
        ),
        hidden=trajectory.outcome.share,
        judgement=by_group.note(group, trajectory) if by_group else "",
    )
