"""Judging a trajectory: the job of the queue `judge`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from services.reward.judge import GenerateMany, StepJudge
from services.reward.metrics import JUDGE_SECONDS, JUDGED, count_votes
from services.reward.trying import insist
from triforge.broker import Broker
from triforge.errors import TriforgeError
from triforge.rollout.patience import patiently
from triforge.types import ErrorInfo, JudgeTask, Trajectory, TrajectoryVotes

_log = logging.getLogger(__name__)


class JudgeWorker:
    """Judges trajectories; one a process, shared by all of its jobs.

    A trajectory always gets its entry: when the judge cannot answer, the entry holds the error and no steps, so the group
    completes all the same and the trainer sees that the steps were not judged.

    Args:
        wire: leases and payloads.
        generate_many: the policy service that judges.
        retries: fresh tries after an answer that cannot be used.
        patience_s: seconds to wait for a policy service or a Redis that does not answer, within the job's deadline.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        generate_many: GenerateMany,
        retries: int = 2,
        patience_s: float = 60.0,
    ) -> None:
        self._broker = broker
        self._generate_many = generate_many
        self._retries = retries
        self._patience_s = patience_s

    async def judge(self, task: JudgeTask) -> None:
        """Judge the trajectory if nobody has and nobody does, and announce its group if that completes it.

        A job of a run that has ended is dropped.

        Raises:
            UnavailableError: Redis does not answer; deliver the job again later.
        """
        async with self._broker.take_trajectory(task) as taken:
            if not taken.ours:
                _log.debug("%s is dropped: %s", task.trajectory_id, taken.state)
                return
            if taken.state == "judged":
                await self._insist(lambda: self._broker.announce_if_complete(task.group_id))
                return
            if taken.payload is None:
                _log.info("%s is gone: its group is done", task.trajectory_id)
                return
            votes = await self._votes(task, taken.payload)
            await self._insist(lambda: self._broker.finish_votes(votes))

    async def _insist(self, call: Callable[[], Awaitable[bool]]) -> None:
        await patiently(call, patience_s=self._patience_s)

    async def _votes(self, task: JudgeTask, trajectory: Trajectory) -> TrajectoryVotes:
        judge = StepJudge(self._generate_many, sampling=task.sampling, prompt=task.prompt)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(task.deadline_s):
                votes = await insist(
                    lambda: judge(trajectory, votes=task.votes, seed=task.seed),
                    retries=self._retries,
                    patience_s=self._patience_s,
                )
        except TimeoutError:
            sentence = (
                f"no votes within {task.deadline_s:g} s; the judge's policy service is too slow or hangs; "
                "reward.deadline_s sets the limit"
            )
            votes = _none(task, ErrorInfo(kind="deadline", detail=sentence, retryable=True))
        except TriforgeError as error:
            votes = _none(
                task, ErrorInfo(kind=error.kind, detail=error.detail, retryable=error.retryable)
            )
        votes = votes.model_copy(update={"seconds": loop.time() - started})
        JUDGE_SECONDS.observe(votes.seconds)
        JUDGED.labels("votes" if votes.error is None else votes.error.kind).inc()
        if votes.error is not None:
            _log.warning("%s was not judged: %s", task.trajectory_id, votes.error.detail)
        count_votes(votes.steps)
        return votes


def _none(task: JudgeTask, error: ErrorInfo) -> TrajectoryVotes:
    return TrajectoryVotes(
        trajectory_id=task.trajectory_id, group_id=task.group_id, steps=(), error=error
    )
