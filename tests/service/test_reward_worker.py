"""The job of the queue `judge` against a real Valkey: voted once, announced once, complete even without a judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
import redis
from prometheus_client import REGISTRY

from services.reward.worker import JudgeWorker
from tests.service.test_broker import announced, put
from tests.unit.trainer.played import group_task, judged
from triforge.broker import Broker
from triforge.config import RewardSection
from triforge.errors import ConfigError, PolicyError, UnavailableError
from triforge.rollout.episode import judge_task
from triforge.types import (
    Criteria,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    JudgeTask,
    RubricPoint,
    Sampling,
    Trajectory,
    TrajectoryVotes,
    VersionSpan,
)

GROUP = judged(group_task(run_id="r"), [1, 1], [[[1, 1]] * 2] * 2)  # two trajectories of two steps
SPAN = (VersionSpan(version=3, start=0, end=1),)


def job(index: int = 0, **changes: object) -> JudgeTask:
    fields: dict[str, object] = {
        "trajectory_id": f"g-{index:02d}",
        "group_id": "g",
        "run_id": "r",
        "votes": 2,
        "seed": 7,
        "sampling": Sampling(max_new_tokens=4),
        "deadline_s": 20.0,
        "prompt": "terse",
    }
    return JudgeTask.model_validate(fields | changes)


def answer(request: GenerateRequest, text: str) -> GenerateReply:
    output = GenerateOutput(text=text, ids=(9,), logprobs=(-0.5,), versions=SPAN, finish="stop")
    return GenerateReply(prompt_ids=(5,), outputs=(output,) * request.n)


class Service:
    """A policy service that says one text for ever, or raises the given errors first."""

    def __init__(self, text: str = r"\boxed{1}", errors: Sequence[Exception] = ()) -> None:
        self.text, self.errors = text, list(errors)
        self.calls = 0
        self.asked: list[GenerateRequest] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        if self.hold is not None:
            await self.hold.wait()
        self.asked += requests
        return [answer(request, self.text) for request in requests]


def worker(broker: Broker, service: Service) -> JudgeWorker:
    return JudgeWorker(broker=broker, generate_many=service, retries=2, patience_s=0.3)


@pytest.fixture
async def played(broker: Broker) -> Broker:
    """A broker that holds a played group of two trajectories."""
    await put(broker, GROUP, votes=False)
    return broker


async def votes_of(broker: Broker) -> dict[str, TrajectoryVotes]:
    judged = await broker.judged_group("g")
    assert judged is not None
    return {votes.trajectory_id: votes for votes in judged.votes if votes is not None}


async def test_the_last_judged_trajectory_completes_and_announces_the_group(played: Broker) -> None:
    judge = worker(played, Service())
    await judge.judge(job(0))
    assert await announced(played) == []
    await judge.judge(job(1))
    assert await announced(played) == ["g"]
    votes = await votes_of(played)
    assert set(votes) == {"g-00", "g-01"}
    assert [[v.value for v in s.votes] for s in votes["g-00"].steps] == [[1, 1], [1, 1]]


async def test_the_rubric_of_a_task_gets_its_votes(broker: Broker) -> None:
    rubric = (RubricPoint(text="helps", weight=2.0), RubricPoint(text="is short"))
    criteria = Criteria(rubric=rubric, reference="say yes")
    rollouts = tuple(t.model_copy(update={"criteria": criteria}) for t in GROUP.played.trajectories)
    played = GROUP.played.model_copy(update={"trajectories": rollouts})
    await put(broker, GROUP.model_copy(update={"played": played}), votes=False)
    service = Service(r"\boxed{1}\boxed{-1}")
    judge = worker(broker, service)
    await judge.judge(job(0, hindsight=True))
    service.text = r"\boxed{1}"  # a vote is missing
    await judge.judge(job(1))
    assert await announced(broker) == ["g"]
    votes = await votes_of(broker)
    assert [[v.value for v in s.votes] for s in votes["g-00"].steps] == [[1, 1], [1, 1]]
    assert [[v.value for v in s.votes] for s in votes["g-01"].steps] == [[0, 0], [0, 0]]
    prompts = [str(request.messages[0].content) for request in service.asked]
    assert all("? say yes >" in prompt and "? helps ? is short ?" in prompt for prompt in prompts)
    assert [prompt.count("?") for prompt in prompts] == [
        5,
        5,
        4,
        4,
    ]  # one more before a question in hindsight


async def test_rollouts_that_are_compared_have_scores(broker: Broker) -> None:
    task = group_task(run_id="r")
    reward = RewardSection(kind="pairwise", votes=1, prompt="terse")
    played = GROUP.played.model_copy(
        update={"group": task.model_copy(update={"reward": reward, "votes": 1})}
    )
    await broker.put_payload(played)
    service = Service(r"\boxed{1}")
    judge = worker(broker, service)
    asked = judge_task(played.group)
    await asyncio.gather(judge.judge(asked), judge.judge(asked))
    assert await announced(broker) == ["g"]
    votes = await votes_of(broker)
    assert {n: [s.score for s in v.steps] for n, v in votes.items()} == {
        name: [0.0, 0.0] for name in ("g-00", "g-01")
    }
    assert len(service.asked) == 2  # each of the two first, once


async def test_a_comparison_that_fails_is_data(broker: Broker) -> None:
    reward = RewardSection(kind="pairwise", votes=1)
    group = GROUP.played.group.model_copy(update={"reward": reward, "votes": 1})
    await broker.put_payload(GROUP.played.model_copy(update={"group": group}))
    errors = [PolicyError("no") for _ in range(9)]
    await worker(broker, Service(errors=errors)).judge(judge_task(group))
    judged = await broker.judged_group("g")
    assert judged is not None
    assert judged.judgement is not None
    assert judged.judgement.error is not None
    assert judged.votes == (None, None)


async def test_a_trajectory_is_judged_before_its_group_is_played(broker: Broker) -> None:
    await broker.put_payload(GROUP.played.trajectories[0])
    await worker(broker, Service()).judge(job(0))
    assert await broker.voted(["g-00", "g-01"]) == {"g-00"}
    assert await announced(broker) == []


async def test_an_job_delivered_twice_is_judged_once_and_announced_once(played: Broker) -> None:
    service = Service()
    judge = worker(played, service)
    await asyncio.gather(judge.judge(job(0)), judge.judge(job(0)))
    await judge.judge(job(0))
    await judge.judge(job(1))
    await judge.judge(job(1))
    assert service.calls == 2
    assert await announced(played) == ["g"]


async def test_an_job_of_a_run_that_has_ended_is_dropped_until_the_run_goes_on(
    played: Broker,
) -> None:
    service = Service()
    await played.end_run("r")
    await worker(played, service).judge(job(0))
    assert (service.calls, await played.voted(["g-00", "g-01"])) == (0, set())
    await played.begin_run("r")
    await worker(played, service).judge(job(0))
    assert await played.voted(["g-00", "g-01"]) == {"g-00"}


async def test_an_job_that_another_worker_holds_is_left_alone(played: Broker) -> None:
    service = Service()
    async with played.lease("g-00"):
        await worker(played, service).judge(job(0))
    assert service.calls == 0
    assert await played.voted(["g-00", "g-01"]) == set()


async def test_the_job_of_a_killed_worker_is_taken_over(played: Broker, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("tf:lease:g-00", "dead", px=200)
    judge = worker(played, Service())
    await judge.judge(job(0))
    assert await played.voted(["g-00", "g-01"]) == set()
    async with asyncio.timeout(30):
        while await played.is_held("g-00"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await judge.judge(job(0))
    assert await played.voted(["g-00", "g-01"]) == {"g-00"}


async def test_a_worker_that_died_between_voting_and_announcing_loses_nothing(
    played: Broker,
) -> None:
    for index in (0, 1):
        await played.put_payload(
            TrajectoryVotes(trajectory_id=f"g-{index:02d}", group_id="g", steps=())
        )
    service = Service()
    await worker(played, service).judge(job(1))
    assert await announced(played) == ["g"]
    assert service.calls == 0


async def test_votes_that_another_worker_stored_first_are_the_ones_that_count(
    played: Broker,
) -> None:
    service = Service()
    service.hold = asyncio.Event()
    judging = asyncio.create_task(worker(played, service).judge(job(0)))
    first = TrajectoryVotes(trajectory_id="g-00", group_id="g", steps=(), seconds=77.0)
    await played.put_payload(first)
    service.hold.set()
    await judging
    await worker(played, Service()).judge(job(1))
    assert (await votes_of(played))["g-00"] == first


async def test_a_judge_that_answers_nonsense_votes_zero_and_the_group_completes(
    played: Broker,
) -> None:
    before = REGISTRY.get_sample_value("triforge_reward_votes_total", {"value": "invalid"}) or 0.0
    judge = worker(played, Service(text="I like trains."))
    await judge.judge(job(0))
    await judge.judge(job(1))
    assert await announced(played) == ["g"]
    votes = await votes_of(played)
    values = [v.value for one in votes.values() for s in one.steps for v in s.votes]
    assert values == [0] * 8
    assert {v.text for s in votes["g-00"].steps for v in s.votes} == {"I like trains."}
    after = REGISTRY.get_sample_value("triforge_reward_votes_total", {"value": "invalid"}) or 0.0
    assert after - before == 8


AWAY = UnavailableError("no server at 127.0.0.1:8011", retry_after_s=0.05)


@pytest.mark.parametrize(
    ("errors", "calls"),
    [([AWAY, AWAY], 3), ([PolicyError("engine says 500"), KeyError("ids")], 3)],
)
async def test_a_judge_that_recovers_is_waited_for(
    played: Broker, errors: list[Exception], calls: int
) -> None:
    service = Service(errors=errors)
    await worker(played, service).judge(job(0))
    await worker(played, Service()).judge(job(1))
    assert service.calls == calls
    votes = (await votes_of(played))["g-00"]
    assert votes.error is None
    assert len(votes.steps) == 2


@pytest.mark.parametrize(
    ("error", "kind", "calls"),
    [
        (PolicyError("engine says 500"), "policy", 3),
        (RuntimeError("bug"), "reward", 3),
        (ConfigError("wrong key"), "config", 1),
        (AWAY, "unavailable", None),  # until the patience ends
    ],
)
async def test_a_judge_that_stays_broken_leaves_an_error_and_the_group_completes(
    played: Broker, error: Exception, kind: str, calls: int | None
) -> None:
    service = Service(errors=[error] * 200)
    await worker(played, service).judge(job(0))
    await worker(played, Service()).judge(job(1))
    assert calls in (None, service.calls)
    votes = (await votes_of(played))["g-00"]
    assert votes.error is not None
    assert (votes.error.kind, votes.steps) == (kind, ())
    assert str(error) in votes.error.detail
    assert await announced(played) == ["g"]


async def of_another_type(*_: object) -> list[int]:
    return [1, 1]


async def of_another_trajectory(played: Trajectory, *_: object) -> TrajectoryVotes:
    return TrajectoryVotes(trajectory_id="g-07", group_id=played.group_id, steps=())


@pytest.mark.parametrize(
    "scorer",
    [of_another_type, of_another_trajectory],
)
async def test_a_scorer_with_a_bad_result_fails_at_once_by_name(
    played: Broker, scorer: Callable[..., object]
) -> None:
    judge, name = worker(played, Service()), f"{__name__}:{scorer.__name__}"
    for index in (0, 1):
        await judge.judge(job(index, scorer=name))
    assert await announced(played) == ["g"]
    for votes in (await votes_of(played)).values():
        assert votes.steps == ()
        assert votes.error is not None
        assert votes.error.kind == "reward"
        assert name in votes.error.detail
        assert (votes.seconds or 0.0) < 1.0


async def test_a_judge_that_hangs_meets_the_deadline(played: Broker) -> None:
    service = Service()
    service.hold = asyncio.Event()
    await worker(played, service).judge(job(0, deadline_s=0.05))
    await worker(played, Service()).judge(job(1))
    votes = (await votes_of(played))["g-00"]
    assert votes.error is not None
    assert votes.error.kind == "deadline"
