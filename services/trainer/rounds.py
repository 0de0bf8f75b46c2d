"""What a run plays, round by round. A round is one plan; it is drawn once, so its groups can be built again any time."""

from __future__ import annotations

from services.trainer.parts import Parts
from triforge.config import RunConfig
from triforge.rollout.seeds import nth_seed
from triforge.types import GroupTask, PlannedGroup, RunState


class Rounds:
    """The rounds of one run.

    Args:
        parts: env_adapter draws the plans.
        run: the run.
        config: its config.
    """

    def __init__(self, parts: Parts, run: RunState, config: RunConfig) -> None:
        self._parts, self._run, self._config = parts, run, config
        algorithm = config.algorithm.resolved()
        by_tests = config.reward.kind == "unit_tests"  # they do not enter the policy's reward
        needed = algorithm.train_reward_model if by_tests else algorithm.needs_votes
        self._votes = config.reward.votes if needed else 0

    async def tasks(self, number: int) -> list[GroupTask]:
        """The groups of round `number`, counted from 1; the same every time."""
        config, adaptation = self._config, self._config.adaptation
        plan = await self._parts.env_adapter.plan(
            self._run.pool_id,
            run_id=self._run.id,
            step=number,
            kind="train",
            groups=config.run.groups_per_step,
            seed=config.run.seed,
            max_pending=adaptation.max_pending if adaptation.rewrites else 0,
            adopt=adaptation.adopt_pending,
            max_adapted=adaptation.max_adapted,
        )
        return [self._task(number, index, group) for index, group in enumerate(plan)]

    def _task(self, number: int, index: int, group: PlannedGroup) -> GroupTask:
        config = self._config
        return GroupTask(
            group_id=f"{self._run.id}-{number:05d}-train-{index:04d}",
            run_id=self._run.id,
            step=number,
            task_id=group.task_id,
            purpose=group.purpose,
            rollouts=config.env_adapter.rollouts,
            votes=self._votes,
            seed=nth_seed(config.run.seed, number, index),
            sampling=config.models.policy.sampling(),
            judge_sampling=config.models.reward.sampling(),
            proposal_id=group.proposal_id,
            env_adapter=config.env_adapter,
            reward=config.reward,
        )
