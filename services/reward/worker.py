"""The jobs of the queue `judge`: votes on a trajectory, and tests for a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from prometheus_client import Counter, Histogram

from triforge.broker import Broker, JobClaim
from triforge.config.parts import SCORERS
from triforge.errors import RewardError, TriforgeError
from triforge.methods import load_part
from triforge.retry import RetryPolicy, is_retryable, retry, waiting
from triforge.rollout.protocols import GenerateMany, GroupScorer, StepScorer
from triforge.sandbox.client import Sandbox
from triforge.telemetry import stamp
from triforge.types import (
    ErrorInfo,
    GroupTests,
    JudgeTask,
    StepVotes,
    Trajectory,
    TrajectoryGroup,
    TrajectoryVotes,
    UnitTestTask,
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

VOTES = Counter("triforge_reward_votes_total", "Votes cast, by what was read from them.", ["value"])
JUDGED = Counter(
    "triforge_reward_judged_trajectories_total", "Trajectories judged, by result.", ["result"]
)
UNIT_TESTS = Counter(
    "triforge_reward_unit_tests_total", "Tests written, by whether they could be read.", ["value"]
)
UNIT_TESTED = Counter(
    "triforge_reward_unit_tested_groups_total", "Groups that got tests, by result.", ["result"]
)
JUDGE_SECONDS = Histogram(
    "triforge_reward_judge_seconds",
    "Seconds from taking up a trajectory to its votes, or a group to its tests.",
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
        patience_s: float = 60.0,
    ) -> None:
        self._broker = broker
        self._generate_many = generate_many
        self._sandbox = sandbox
        self._waiting = waiting(patience_s)
        self._retrying = RetryPolicy(factor=4, retries=retries, retry_on=is_retryable)
        self._turn = asyncio.Semaphore(1)  # one group runs at a time; its time is its own

    async def judge(self, task: JudgeTask) -> None:
        """Judge the trajectory if no worker has and none does, and announce its group if that completes it.

        Raises:
            UnavailableError: the broker does not answer; deliver the job again later.
        """
        async with self._broker.claim_trajectory(task) as claim:
            if claim.state == "open" and claim.payload is not None:
                votes = await self._votes(task, claim.payload)
                await retry(lambda: self._broker.put_payload(votes), self._waiting)
            await self._announce(task.group_id, task.trajectory_id, claim)

    async def write_tests(self, task: UnitTestTask) -> None:
        """Write and run the group's tests if no worker has and none does, and announce the group; raises like `judge`."""
        async with self._broker.claim_group(task) as claim:
            if claim.state == "open" and claim.payload is not None:
                tests = await self._tests(task, claim.payload)
                await retry(lambda: self._broker.put_payload(tests), self._waiting)
            await self._announce(task.group_id, task.group_id, claim)

    async def _announce(self, group_id: str, name: str, claim: JobClaim[Any]) -> None:
        if claim.state == "open" and claim.payload is None:
            _log.info("%s is gone: its group is done", name)
        elif claim.granted:
            await retry(lambda: self._broker.announce_if_complete(group_id), self._waiting)
        else:
            _log.debug("%s is dropped: %s", name, claim.state)

    async def _votes(self, task: JudgeTask, trajectory: Trajectory) -> TrajectoryVotes:
        names = {"trajectory_id": task.trajectory_id, "group_id": task.group_id}
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(task.deadline_s):
                score: StepScorer = scorer_of(task.scorer)
                votes = _expect_votes(
                    await self._insist(lambda: score(trajectory, task, self._generate_many)),
                    trajectory,
                    task,
                )
        except (TimeoutError, TriforgeError) as error:
            limit = f"no votes within {task.deadline_s:g} s; the judge's policy service is too slow or hangs; reward.deadline_s sets the limit"
            votes = TrajectoryVotes(steps=(), error=_as_data(error, limit), **names)
            _log.warning("%s was not judged: %s", task.trajectory_id, votes.error)
        seconds = asyncio.get_running_loop().time() - started
        JUDGE_SECONDS.observe(seconds)
        JUDGED.labels("votes" if votes.error is None else votes.error.kind).inc()
        count_votes(votes.steps)
        return votes.model_copy(update={"seconds": seconds, **stamp()})

    async def _tests(self, task: UnitTestTask, played: TrajectoryGroup) -> GroupTests:
        """Give writing and running the deadline each; waiting for the programs of other groups counts against neither."""
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(task.deadline_s):
                scorer: GroupScorer = scorer_of(task.scorer)
                reply = await self._insist(lambda: scorer.ask(self._generate_many, task, played))
            async with self._turn, asyncio.timeout(task.deadline_s):
                sandbox = self._sandbox
                tests = await self._insist(lambda: scorer.judge(sandbox, played, reply))
                _expect(tests, GroupTests, task.scorer)
        except (TimeoutError, TriforgeError) as error:
            limit = (
                f"tests were not written, or not run, within {task.deadline_s:g} s; the judge's policy service is too slow or hangs, "
                "or the programs take too long; reward.deadline_s sets the limit of each"
            )
            tests = GroupTests(
                group_id=task.group_id, programs=(), prompt_ids=(), tests=(), error=_as_data(error, limit),
            )  # fmt: skip
            _log.warning("%s got no tests: %s", task.group_id, tests.error)
        seconds = asyncio.get_running_loop().time() - started
        JUDGE_SECONDS.observe(seconds)
        UNIT_TESTED.labels("tests" if tests.error is None else tests.error.kind).inc()
        for test in tests.tests:
            UNIT_TESTS.labels("invalid" if test.input is None else "parsed").inc()
        return tests.model_copy(update={"seconds": seconds, **stamp()})

    async def _insist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Await `call`, again when it fails in a way that may pass; in each try a service that is away is waited for."""
        try:
            return await retry(lambda: retry(call, self._waiting), self._retrying)
        except (TriforgeError, TimeoutError):
            raise
        except Exception as error:
            raise RewardError(f"judging raised {type(error).__name__}: {error}") from error


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
