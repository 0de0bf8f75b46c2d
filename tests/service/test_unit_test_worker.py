"""Tests for a group against a real Valkey: written once, run once, announced once; a sandbox that fails is no verdict."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.reward.worker import JudgeWorker
from tests.sections import flat_group
from tests.service.test_broker import announced
from triforge.broker import Broker, group_judgement_id, unjudged
from triforge.errors import SandboxError
from triforge.sandbox.client import Sandbox
from triforge.sandbox.limits import Limits, RunResult
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupJudgement,
    JudgeTask,
    Outcome,
    ProgramLimits,
    Sampling,
    Segment,
    Step,
    Task,
    Trajectory,
    TrajectoryGroup,
    VersionSpan,
)

GROUP = flat_group(
    group_id="g", run_id="r", step=0, task_id="t", purpose="train", rollouts=3, votes=2, seed=5,
    sampling=Sampling(), max_steps=5, deadline_s=20.0, reward_kind="cure",
)  # fmt: skip
TASK = Task(id="t", pool_id="p", slot="t", family="code", instruction="Say yes.")
DEFAULT = Limits()
NAME = group_judgement_id("g")
JOB = JudgeTask(
    scorer="cure",
    group_id="g",
    run_id="r",
    votes=2,
    seed=7,
    sampling=Sampling(max_new_tokens=4),
    deadline_s=20.0,
)
TEXTS = ("```input\n1\n```\n```output\nyes\n```", "I like trains.")


def trajectory(index: int, *, program: str | None, value: int | None = -1) -> Trajectory:
    step = Step(
        index=0, observation="o", response="r", action=program or "", action_valid=program is not None,
        next_observation="n", start=0, end=1,
    )  # fmt: skip
    return Trajectory(
        id=f"g-{index:02d}", group_id="g", index=index, task_id="t", task_version=0, instruction="Say yes.",
        steps=(step,), segments=(Segment(ids=(1,), logprobs=(0.0,), versions=()),),
        outcome=Outcome.model_validate({"value": value}),
    )  # fmt: skip


class Service:
    """A policy service that writes the texts, or raises the given errors first."""

    def __init__(self, errors: Sequence[Exception] = ()) -> None:
        self.errors = list(errors)
        self.asked: list[GenerateRequest] = []

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        self.asked += requests
        if self.errors:
            raise self.errors.pop(0)
        span = (VersionSpan(version=3, start=0, end=1),)
        outputs = tuple(
            GenerateOutput(text=text, ids=(9,), logprobs=(-0.5,), versions=span, finish="stop")
            for text in TEXTS
        )
        return [GenerateReply(prompt_ids=(5, 6), outputs=outputs)]


class Echo(Sandbox):
    """Every program prints its source, once the given errors are used up."""

    def __init__(self, errors: Sequence[Exception] = ()) -> None:
        super().__init__()
        self.errors = list(errors)
        self.runs = 0

    async def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT) -> RunResult:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return RunResult(
            ended="exit", exit_code=0, stdout=program, stderr=stdin, seconds=0.0, cpu_s=limits.cpu_s
        )


def worker(broker: Broker, service: Service, sandbox: Sandbox) -> JudgeWorker:
    return JudgeWorker(
        broker=broker, generate_many=service, sandbox=sandbox, retries=2, patience_s=0.3
    )


def group(*, programs: bool = True, measured: bool = True) -> TrajectoryGroup:
    limits = ProgramLimits(cpu_s=1.0, wall_s=5.0, memory_bytes=2**27) if programs else None
    value = -1 if measured else None
    played = (
        trajectory(0, program="yes", value=1 if measured else None),
        trajectory(1, program="no", value=value),
        trajectory(2, program=None, value=value),
        trajectory(3, program="yes", value=None),
    )
    return TrajectoryGroup(group=GROUP, task=TASK, trajectories=played, programs=limits)


@pytest.fixture
async def played(broker: Broker) -> Broker:
    await broker.put_payload(group())
    return broker


async def stored_tests(broker: Broker) -> GroupJudgement:
    judged = await broker.judged_group("g")
    assert judged is not None
    assert judged.votes == (None,) * 4
    assert judged.judgement is not None
    return judged.judgement


async def test_tests_are_written_run_stored_and_announced(played: Broker) -> None:
    service, sandbox = Service(), Echo()
    assert await played.judged_group("g") is None
    await worker(played, service, sandbox).judge(JOB)
    assert await announced(played) == ["g"]
    tests = await stored_tests(played)
    assert tests.extra == {"cure": ["g-00", "g-01", "g-02"]}  # the fourth was not measured
    assert [t.extra["cure"] for t in tests.texts] == [
        {"input": "1\n", "output": "yes\n", "accepts": [True, False, False]},
        {"input": None, "output": None, "accepts": []},
    ]
    assert [t.text for t in tests.texts] == list(TEXTS)
    assert sandbox.runs == 2
    (request,) = service.asked
    assert (request.n, request.sampling.seed) == (2, 7)
    shown = str(request.messages)
    assert "Say yes." in shown
    assert "g-00" not in shown


async def test_what_another_worker_stored_first_counts_and_is_announced(played: Broker) -> None:
    first = GroupJudgement(group_id="g", prompt_ids=(), texts=(), seconds=77.0)
    assert await played.put_payload(first)
    assert not await played.put_payload(first.model_copy(update={"seconds": 1.0}))
    service = Service()
    await worker(played, service, Echo()).judge(JOB)
    assert service.asked == []
    assert await stored_tests(played) == first
    assert await announced(played) == ["g"]


async def test_an_job_that_another_holds_or_whose_run_ended_or_whose_group_is_gone_is_left(
    played: Broker,
) -> None:
    service = Service()
    writer = worker(played, service, Echo())
    async with played.lease(NAME):
        await writer.judge(JOB)
    await played.end_run("r")
    await writer.judge(JOB)
    await played.begin_run("r")
    await played.forget_group("g", ())
    await writer.judge(JOB)
    assert service.asked == []
    assert await played.voted([NAME]) == set()


async def test_a_sandbox_that_recovers_gives_verdicts_and_the_tests_are_not_written_again(
    played: Broker,
) -> None:
    service, sandbox = Service(), Echo(errors=[SandboxError("no namespace"), SandboxError("again")])
    await worker(played, service, sandbox).judge(JOB)
    assert len(service.asked) == 1
    (first, _) = (await stored_tests(played)).texts
    assert "[True, False, False]" in str(first.extra)


async def test_a_sandbox_that_stays_broken_is_an_error_and_never_a_verdict(played: Broker) -> None:
    broken = Echo(errors=[SandboxError("bubblewrap is not installed")] * 99)
    await worker(played, Service(), broken).judge(JOB)
    tests = await stored_tests(played)
    assert tests.error is not None
    assert (tests.error.kind, tests.texts) == ("sandbox", ())
    assert "bubblewrap" in tests.error.detail
    assert await announced(played) == ["g"]


async def test_the_programs_of_one_group_run_at_a_time(broker: Broker) -> None:
    class Counts(Echo):
        active = peak = 0

        async def run(self, program: str, stdin: str = "", limits: Limits = DEFAULT) -> RunResult:
            self.active += 1
            self.peak = max(self.peak, self.active)
            await asked.wait()  # the other group's tests are written meanwhile
            for _ in range(100):
                await asyncio.sleep(0)
            self.active -= 1
            return await super().run(program, stdin, limits)

    class Tells(Service):
        async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
            replies = await super().__call__(requests)
            if len(self.asked) == 2:
                asked.set()
            return replies

    asked, sandbox = asyncio.Event(), Counts()
    for name in ("g", "h"):
        played = group()
        task = played.group.model_copy(update={"group_id": name})
        await broker.put_payload(played.model_copy(update={"group": task}))
    writer = worker(broker, Tells(), sandbox)
    jobs = [JOB, JOB.model_copy(update={"group_id": "h"})]
    await asyncio.gather(*(writer.judge(job) for job in jobs))
    assert (sandbox.runs, sandbox.peak) == (4, 2)
    assert await broker.voted([NAME, group_judgement_id("h")]) == {NAME, group_judgement_id("h")}


async def test_a_worker_that_is_to_run_tests_does_not_start_where_bubblewrap_is_missing(
    tmp_path: Path, redis_url: str
) -> None:
    (tmp_path / "run.toml").write_text('[reward]\nkind = "cure"\n')
    environment = {
        "PATH": str(tmp_path),
        "TRIFORGE_CONFIG": str(tmp_path / "run.toml"),
        "TRIFORGE_REDIS_URL": redis_url,
    }
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "services.reward", "judge-worker"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "apt-get install bubblewrap" in ended.stderr


def test_only_measured_programs_wait_for_tests() -> None:
    assert unjudged(group(), set()) == (NAME,)
    assert unjudged(group(), {NAME}) == ()
    assert unjudged(group(programs=False), set()) == ()
    assert unjudged(group(measured=False), set()) == ()
