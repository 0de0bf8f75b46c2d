"""The jobs of the queue `judge`: votes on a trajectory, or the judgement of a group as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from prometheus_client import Counter, Histogram

from triforge.broker import Broker, JobClaim
from triforge.config.parts import SCORERS
from triforge.errors import RewardError, TriforgeError, raised_at
from triforge.methods import load_part
from triforge.retry import RetryPolicy, is_retryable, retry, waiting
from triforge.rollout.protocols import GenerateMany, GroupScorer, StepScorer
from triforge.sandbox.client import Sandbox
from triforge.telemetry import stamp
from triforge.types import (
    ErrorInfo,
    GroupJudgement,
    JudgeTask,
    Message,
    StepVotes,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
)

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)
_log = logging.getLogger(__name__)

VOTES = Counter("triforge_reward_votes_total", "Votes cast, by what was read from them.", ["value"])
JUDGED = Counter(
    "triforge_reward_judged_trajectories_total", "Trajectories judged, by result.", ["result"]
)
JUDGED_GROUPS = Counter(
    "triforge_reward_judged_groups_total", "Groups judged as a whole, by result.", ["result"]
)
JUDGE_SECONDS = Histogram(
    "triforge_reward_judge_seconds",
    "Seconds from taking up a trajectory to its votes, or a group to its judgement.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300),
)
_VALUES = {1: "plus", -1: "minus", 0: "invalid"}


def scorer_of(kind: str) -> Any:
    """Import the scorer of a kind of step scores; raise ConfigError if there is none."""
    return load_part(SCORERS.find(kind).part, "reward.kind")


def count_votes(steps: tuple[StepVotes, ...]) -> None:
    """Count every vote of a trajectory."""
    for step in steps:
        for vote in step.votes:
            VOTES.labels(_VALUES[vote.value]).inc()


class JudgeWorker:
    """Judges trajectories and groups; one a process, shared by all of its jobs.

    A trajectory, or a group, always gets its entry: when the judge cannot answer, or programs cannot be run, the entry holds
    the error and nothing else, so the group completes all the same and the trainer sees that it was not judged.

    Args:
        sandbox: where programs run; it bounds how many do at a time, over all jobs.
        retries: fresh tries after an answer that cannot be used, and after a sandbox that did not start.
        patience_s: seconds to wait for a policy service or a broker that does not answer, within the job's deadline.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        generate_many: GenerateMany,
        sandbox: Sandbox | None = None,
        retries: int = 2,
        patience_s: float = 300.0,
    ) -> None:
        self._broker = broker
        self._generate_many = generate_many
        self._sandbox = sandbox
        self._waiting = waiting(patience_s)
        self._retrying = RetryPolicy(factor=4, retries=retries, retry_on=is_retryable)
        self._turn = asyncio.Semaphore(1)  # one group runs at a time; its time is its own

    async def judge(self, task: JudgeTask) -> None:
        """Judge the trajectory or the group if no worker has and none does, and announce the group if that completes it.

        Raises:
            UnavailableError: the broker does not answer; deliver the job again later.
        """
        if task.trajectory_id:
            await self._take(task, self._broker.claim_trajectory(task), self._votes)
        else:
            await self._take(task, self._broker.claim_group(task), self._judgement)

    async def _take(
        self,
        task: JudgeTask,
        claiming: AbstractAsyncContextManager[JobClaim[_M]],
        judge: Callable[[JudgeTask, _M], Awaitable[TrajectoryVotes | GroupJudgement]],
    ) -> None:
        name = task.trajectory_id or task.group_id
        async with claiming as claim:
            if claim.state == "open" and claim.payload is not None:
                result = await judge(task, claim.payload)
                await retry(lambda: self._broker.put_payload(result), self._waiting)
            elif claim.state == "open":
                _log.info("%s is gone: its group is done", name)
                return
            if claim.granted:
                announce = self._broker.announce_if_complete
                await retry(lambda: announce(task.group_id), self._waiting)
            else:
                _log.debug("%s is dropped: %s", name, claim.state)

    async def _votes(self, task: JudgeTask, trajectory: Trajectory) -> TrajectoryVotes:
        names = {"trajectory_id": task.trajectory_id, "group_id": task.group_id}
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(task.deadline_s):
                score: StepScorer = scorer_of(task.scorer)
                given = await self._insist(
                    task, lambda: score(trajectory, task, self._generate_many)
                )
                votes = _expect_votes(given, trajectory, task)
        except (TimeoutError, TriforgeError) as error:
            limit = f"no votes within {task.deadline_s:g} s; the judge's policy service is too slow or hangs; reward.deadline_s sets the limit"
            votes = TrajectoryVotes(steps=(), error=_as_data(error, limit), **names)
            _log.warning("%s was not judged: %s", task.trajectory_id, votes.error)
        seconds = asyncio.get_running_loop().time() - started
        JUDGE_SECONDS.observe(seconds)
        JUDGED.labels("votes" if votes.error is None else votes.error.kind).inc()
        count_votes(votes.steps)
        return votes.model_copy(update={"seconds": seconds, **stamp()})

    async def _judgement(self, task: JudgeTask, played: TrajectoryGroup) -> GroupJudgement:
        """Give asking and judging the deadline each; waiting for the turn of other groups counts against neither."""
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(task.deadline_s):
                scorer: GroupScorer = scorer_of(task.scorer)
                reply = await self._insist(
                    task, lambda: scorer.ask(self._generate_many, task, played)
                )
            async with self._turn, asyncio.timeout(task.deadline_s):
                sandbox = self._sandbox
                judged = await self._insist(task, lambda: scorer.judge(sandbox, played, reply))
                _expect(judged, GroupJudgement, task.scorer)
        except (TimeoutError, TriforgeError) as error:
            limit = (
                f"the group was not judged within {task.deadline_s:g} s; the judge's policy service is too slow or hangs, "
                "or programs take too long; reward.deadline_s sets the limit of asking and of running"
            )
            info = _as_data(error, limit)
            judged = GroupJudgement(group_id=task.group_id, prompt_ids=(), texts=(), error=info)
            _log.warning("%s was not judged: %s", task.group_id, info)
        seconds = asyncio.get_running_loop().time() - started
        JUDGE_SECONDS.observe(seconds)
        JUDGED_GROUPS.labels("judged" if judged.error is None else judged.error.kind).inc()
        return judged.model_copy(update={"seconds": seconds, **stamp()})

    async def _insist(self, task: JudgeTask, call: Callable[[], Awaitable[_T]]) -> _T:
        """Await `call`, again when it fails in a way that may pass; in each try a service that is away is waited for."""
        try:
            return await retry(lambda: retry(call, self._waiting), self._retrying)
        except (TriforgeError, TimeoutError):
            raise
        except Exception as error:
            raised = f"{type(error).__name__}: {error}{raised_at(error)}"
            raise RewardError(f"reward.kind = {task.scorer!r} raised {raised}") from error


def _expect_votes(votes: object, trajectory: Trajectory, task: JudgeTask) -> TrajectoryVotes:
    """Return the result of a scorer; raise RewardError unless it is votes on steps of this trajectory, `task.votes` or none each."""
    judged = _expect(votes, TrajectoryVotes, task.scorer)
    if (judged.trajectory_id, judged.group_id) != (trajectory.id, trajectory.group_id):
        raise _bad_result(task.scorer, f"votes on {judged.trajectory_id}", trajectory.id)
    known = {step.index for step in trajectory.steps}
    for step in judged.steps:
        if step.step not in known:
            raise _bad_result(task.scorer, f"votes on step {step.step}", "each step once at most")
        known.remove(step.step)
        if len(step.votes) not in (0, task.votes):
            given = f"{len(step.votes)} votes on step {step.step}"
            raise _bad_result(task.scorer, given, f"{task.votes} or none (reward.votes)")
    return judged


def _expect(result: object, kind: type[_T], scorer: str) -> _T:
    if not isinstance(result, kind):
        raise _bad_result(scorer, f"a {type(result).__name__}", kind.__name__)
    return result


def _bad_result(scorer: str, given: str, expected: str) -> RewardError:
    error = RewardError(f"reward.kind = {scorer!r} returned {given}, expected {expected}")
    error.retryable = False  # it would return the same again
    return error


def _as_data(error: TimeoutError | TriforgeError, limit: str) -> ErrorInfo:
    if isinstance(error, TriforgeError):
        return ErrorInfo(kind=error.kind, detail=error.detail, retryable=error.retryable)
    return ErrorInfo(kind="deadline", detail=limit, retryable=True)
