"""Writing tests for a group: the job of a group in the queue `judge`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from services.reward.judge import GenerateMany
from services.reward.metrics import JUDGE_SECONDS, UNIT_TESTED, UNIT_TESTS
from services.reward.trying import insist
from services.reward.unit_tests import build_test_prompt, parse_test, run_matrix
from triforge.broker import Broker, unit_tests_id
from triforge.errors import RewardError, TriforgeError
from triforge.rollout.patience import patiently
from triforge.sandbox.client import Sandbox
from triforge.types import (
    ErrorInfo,
    GenerateReply,
    GenerateRequest,
    GroupTests,
    Trajectory,
    TrajectoryGroup,
    UnitTest,
    UnitTestTask,
)

_log = logging.getLogger(__name__)


class UnitTestWorker:
    """Has tests written for played groups and runs the groups' programs on them; one a process.

    A group always gets its entry: when tests cannot be written, or programs not be run, the entry holds the error and no
    tests. A sandbox that does not start is tried again and is never a verdict.

    Args:
        wire: leases and payloads.
        generate_many: the policy service that judges.
        sandbox: where programs run; it bounds how many do at a time, over all jobs.
        retries: fresh tries after an answer that cannot be used, and after a sandbox that did not start.
        patience_s: seconds to wait for a policy service or a Redis that does not answer, within the job's deadline. Writing
            and running have that deadline each; waiting for the programs of other groups counts against neither.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        generate_many: GenerateMany,
        sandbox: Sandbox,
        retries: int = 2,
        patience_s: float = 60.0,
    ) -> None:
        self._broker = broker
        self._generate_many = generate_many
        self._sandbox = sandbox
        self._retries = retries
        self._patience_s = patience_s
        self._turn = asyncio.Semaphore(1)  # one group runs at a time; its time is its own

    async def judge(self, task: UnitTestTask) -> None:
        """Write and run the group's tests if nobody has and nobody does, and announce the group.

        A job of a run that has ended is dropped.

        Raises:
            UnavailableError: Redis does not answer; deliver the job again later.
        """
        if await self._broker.is_ended(task.run_id):
            _log.info("the tests of %s are dropped: its run has ended", task.group_id)
            return
        name = unit_tests_id(task.group_id)
        async with self._broker.lease(name) as held:
            if not held:
                return
            if name not in await self._broker.voted(task.group_id):
                played = await self._broker.group(task.group_id)
                if played is None:
                    _log.info("%s is gone: it is done", task.group_id)
                    return
                tests = await self._tests(task, played)
                await patiently(lambda: self._broker.put_tests(tests), patience_s=self._patience_s)
            await patiently(
                lambda: self._broker.announce_if_complete(task.group_id),
                patience_s=self._patience_s,
            )

    async def _tests(self, task: UnitTestTask, played: TrajectoryGroup) -> GroupTests:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(task.deadline_s):
                reply = await insist(
                    lambda: self._ask(task, played),
                    retries=self._retries,
                    patience_s=self._patience_s,
                )
            async with self._turn, asyncio.timeout(task.deadline_s):
                tests = await self._run(task, played, reply)
        except TimeoutError:
            sentence = (
                f"tests were not written, or not run, within {task.deadline_s:g} s; the judge's policy service is too slow or hangs, "
                "or the programs take too long; reward.deadline_s sets the limit of each"
            )
            tests = _none(task, ErrorInfo(kind="deadline", detail=sentence, retryable=True))
        except TriforgeError as error:
            tests = _none(
                task, ErrorInfo(kind=error.kind, detail=error.detail, retryable=error.retryable)
            )
        tests = tests.model_copy(update={"seconds": loop.time() - started})
        JUDGE_SECONDS.observe(tests.seconds)
        UNIT_TESTED.labels("tests" if tests.error is None else tests.error.kind).inc()
        if tests.error is not None:
            _log.warning("%s got no tests: %s", task.group_id, tests.error.detail)
        for test in tests.tests:
            UNIT_TESTS.labels("invalid" if test.input is None else "parsed").inc()
        return tests

    async def _run(
        self, task: UnitTestTask, played: TrajectoryGroup, reply: GenerateReply
    ) -> GroupTests:
        limits = played.programs
        if limits is None:
            raise RewardError(f"{task.group_id} has no programs that tests could run on")
        measured = [t for t in played.trajectories if t.measured]
        cases = [parse_test(output.text) for output in reply.outputs]
        rows = await insist(
            lambda: run_matrix(self._sandbox, [_program(t) for t in measured], cases, limits),
            retries=self._retries,
            patience_s=self._patience_s,
        )
        return GroupTests(
            group_id=task.group_id,
            programs=tuple(t.id for t in measured),
            prompt_ids=reply.prompt_ids,
            tests=tuple(
                UnitTest(
                    input=None if case is None else case.input,
                    output=None if case is None else case.output,
                    accepts=row,
                    text=output.text,
                    ids=output.ids,
                    logprobs=output.logprobs,
                    versions=output.versions,
                    finish=output.finish,
                )
                for output, case, row in zip(reply.outputs, cases, rows, strict=True)
            ),
        )

    async def _ask(self, task: UnitTestTask, played: TrajectoryGroup) -> GenerateReply:
        request = GenerateRequest(
            messages=build_test_prompt(played.task.instruction),
            n=task.tests,
            sampling=task.sampling.model_copy(update={"seed": task.seed}),
            affinity=task.group_id,
        )
        return _sound(await self._generate_many([request]), task)


def _sound(replies: Sequence[GenerateReply], task: UnitTestTask) -> GenerateReply:
    """The one reply with the tests that were asked for.

    Raises:
        RewardError: it is not.
    """
    if len(replies) != 1 or len(replies[0].outputs) != task.tests:
        counts = [len(reply.outputs) for reply in replies]
        raise RewardError(
            f"asked for {task.tests} tests of {task.group_id}, got {counts}; does the engine honour n?"
        )
    if any(output.finish == "abort" for output in replies[0].outputs):
        # not an unreadable answer of the model, which would be held against it
        raise RewardError(f"the engine aborted a test of {task.group_id}")
    return replies[0]


def _program(trajectory: Trajectory) -> str | None:
    """The program that a trajectory handed in last, None if its last answer was none."""
    last = trajectory.steps[-1] if trajectory.steps else None
    return last.action if last is not None and last.action_valid else None


def _none(task: UnitTestTask, error: ErrorInfo) -> GroupTests:
    return GroupTests(group_id=task.group_id, programs=(), prompt_ids=(), tests=(), error=error)
