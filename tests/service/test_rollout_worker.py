"""The job of the queue `rollout` against a real Valkey: delivered twice, taken over, and handed on."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from services.env_adapter.rollout.worker import RolloutWorker
from tests.sections import flat_group
from tests.service.test_broker import announced
from triforge.broker import JUDGE_QUEUE, Broker
from triforge.errors import EnvError, InputError, NotFoundError
from triforge.rollout.episode import play_episode
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.rollout.seeds import derive_seed
from triforge.types import (
    Criteria,
    Event,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupJudgement,
    GroupTask,
    JudgeTask,
    Params,
    ProgramLimits,
    RubricPoint,
    Sampling,
    Task,
    TrajectoryVotes,
    VersionSpan,
)

TASK = Task(id="t", pool_id="p", slot="t", family="two", instruction="say yes twice")
JUDGE_SAMPLING = Sampling(max_new_tokens=7, temperature=0.5)


def group(**changes: object) -> GroupTask:
    fields: dict[str, object] = {
        "group_id": "g",
        "run_id": "r",
        "step": 0,
        "task_id": "t",
        "purpose": "train",
        "rollouts": 3,
        "votes": 2,
        "seed": 5,
        "sampling": Sampling(max_new_tokens=4),
        "judge_sampling": JUDGE_SAMPLING,
        "max_steps": 5,
        "deadline_s": 20.0,
        "judge_deadline_s": 40.0,
        "retries": 0,
        "options": {"wording": "plain"},
        "judge_prompt": "terse",
    }
    return flat_group(**fields | changes)


class Two:
    """Solved after two responses. The family counts its environments and may break or hold some of them."""

    def __init__(self, family: Family, number: int) -> None:
        self.family, self.number, self.n = family, number, 0

    async def reset(self, task: Task, *, seed: int) -> Reset:
        return Reset(observation=Observation(text=task.instruction))

    async def step(self, response: str) -> StepResult:
        await self.family.before_step(self)
        self.n += 1
        return StepResult(
            observation=Observation(text=f"heard {self.n}"),
            action=response,
            action_valid=True,
            done=self.n == 2,
            success=self.n == 2,
        )

    async def close(self) -> None:
        return


class Family:
    name = "two"
    never_blocks = True

    def __init__(self) -> None:
        self.made: list[Params] = []
        self.broken: set[int] = set()
        self.held: dict[int, asyncio.Event] = {}
        self.meanwhile: Callable[[], Any] | None = None
        self.solved = True

    def gold(self, task: Task, options: Params) -> list[str] | None:
        return ["yes", "yes"] if self.solved else None

    def make(self, options: Params) -> Two:
        self.made.append(options)
        return Two(self, len(self.made))

    async def before_step(self, environment: Two) -> None:
        if environment.number in self.broken:
            raise EnvError("the simulator died")
        if environment.number in self.held:
            await self.held[environment.number].wait()
        if self.meanwhile is not None:
            await self.meanwhile()


async def says_yes(request: GenerateRequest) -> GenerateReply:
    span = VersionSpan(version=1, start=0, end=1)
    output = GenerateOutput(text="yes", ids=(7,), logprobs=(-0.5,), versions=(span,), finish="stop")
    return GenerateReply(prompt_ids=(*request.prefix_ids, 100), outputs=(output,))


def worker(broker: Broker, family: Family, *, tasks: tuple[Task, ...] = (TASK,)) -> RolloutWorker:
    known = {task.id: task for task in tasks}

    def read(task_id: str) -> Task:
        if task_id not in known:
            raise NotFoundError(f"task {task_id}: not found")
        return known[task_id]

    return RolloutWorker(
        broker=broker,
        generate=says_yes,
        read_task=read,
        family=lambda _: family,  # type: ignore[arg-type, return-value]
        patience_s=1.0,
    )


def sent(redis_url: str, queue: str = JUDGE_QUEUE, *, kind: type[Any] = JudgeTask) -> list[Any]:
    """The jobs that wait in a queue, oldest first."""
    with redis.Redis.from_url(redis_url) as client:
        raw = [json.loads(item) for item in client.lrange(queue, 0, -1)]
    bodies = [json.loads(base64.b64decode(item["body"])) for item in reversed(raw)]
    return [kind.model_validate_json(body[0][0]) for body in bodies]


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition in another process holds; it has no event to wait for."""
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_group_is_played_stored_and_sent_to_the_judge(
    broker: Broker, redis_url: str
) -> None:
    family = Family()
    await worker(broker, family).play(group())
    played = await broker.group("g")
    assert played is not None
    assert (played.group, played.task) == (group(), TASK)
    assert [t.id for t in played.trajectories] == ["g-00", "g-01", "g-02"]
    assert [t.outcome.value for t in played.trajectories] == [1, 1, 1]
    assert await broker.trajectories([t.id for t in played.trajectories]) == list(
        played.trajectories
    )
    assert family.made == [{"wording": "plain"}] * 3
    assert {task.trajectory_id: task for task in sent(redis_url)} == {
        f"g-{k:02d}": JudgeTask(
            trajectory_id=f"g-{k:02d}",
            group_id="g",
            run_id="r",
            votes=2,
            seed=derive_seed(5, "judge", k),
            sampling=JUDGE_SAMPLING,
            deadline_s=40.0,  # the judge's own, not the episode's
            prompt="terse",
        )
        for k in range(3)
    }
    assert await announced(broker) == []  # not before it is judged
    assert not await broker.is_held("g")


async def test_a_group_of_an_ended_run_or_a_committed_step_is_not_played(broker: Broker) -> None:
    family = Family()
    await broker.end_run("r")
    await worker(broker, family).play(group())
    assert (family.made, await broker.group("g")) == ([], None)
    await broker.begin_run("r")
    await worker(broker, family).play(group())
    assert await broker.group("g")
    made = len(family.made)
    await broker.retire_group("g", ("g-00", "g-01", "g-02"))
    await worker(broker, family).play(group())
    assert (len(family.made), await broker.group("g")) == (made, None)


async def test_a_trajectory_is_sent_to_the_judge_before_its_group_ends(
    broker: Broker, redis_url: str
) -> None:
    family = Family()
    family.held[2] = asyncio.Event()
    playing = asyncio.create_task(worker(broker, family).play(group()))

    async def two_sent() -> bool:
        return len(sent(redis_url)) == 2

    await until(two_sent)
    assert await broker.group("g") is None
    assert {task.trajectory_id for task in sent(redis_url)} == {"g-00", "g-02"}
    family.held[2].set()
    await playing
    assert await broker.group("g")


async def test_an_unmeasured_trajectory_is_kept_but_not_judged(
    broker: Broker, redis_url: str
) -> None:
    family = Family()
    family.broken = {1}
    await worker(broker, family).play(group())
    played = await broker.group("g")
    assert played is not None
    assert sorted(t.measured for t in played.trajectories) == [False, True, True]
    judged = {task.trajectory_id for task in sent(redis_url)}
    assert judged == {t.id for t in played.trajectories if t.measured}


async def test_what_environments_wait_for_is_reported_while_they_are_played(broker: Broker) -> None:
    family, free = Family(), asyncio.Event()
    family.held[1] = free
    family.activity = lambda: "the judge is slow"  # type: ignore[attr-defined]
    player = worker(broker, family)
    player.report_s = 0.01
    playing = asyncio.create_task(player.play(group()))
    events: list[tuple[str, Event]] = []
    while not events:
        events = await broker.read_events("0", block_s=0.05, run_id="r")
    free.set()
    await playing
    event = events[0][1]
    assert (event.kind, event.step, event.data["text"]) == ("waits", 0, "the judge is slow")


async def test_an_environment_gets_its_own_thread_unless_its_family_never_blocks(
    broker: Broker,
) -> None:
    async def threads(never_blocks: bool, group_id: str) -> set[bool]:
        family, seen = Family(), set()
        family.never_blocks = never_blocks

        async def note() -> None:
            seen.add(threading.current_thread() is threading.main_thread())

        family.meanwhile = note
        await worker(broker, family).play(group(group_id=group_id))
        return seen

    assert await threads(True, "g1") == {True}
    assert await threads(False, "g2") == {False}


async def test_an_job_delivered_twice_at_once_is_played_once_and_needs_no_votes(
    broker: Broker, redis_url: str
) -> None:
    family = Family()
    one, two = worker(broker, family), worker(broker, family)
    await asyncio.gather(one.play(group(votes=0)), two.play(group(votes=0)))
    await one.play(group(votes=0))
    assert len(family.made) == 3
    assert await announced(broker) == ["g"]
    assert sent(redis_url) == []


async def test_an_job_that_another_worker_holds_is_left_alone(broker: Broker) -> None:
    family = Family()
    async with broker.lease("g") as held:
        assert held
        await worker(broker, family).play(group())
    assert family.made == []
    assert await broker.group("g") is None


async def test_a_second_delivery_sends_the_missing_judge_jobs_again(
    broker: Broker, redis_url: str
) -> None:
    family = Family()
    player = worker(broker, family)
    await player.play(group())
    await broker.put_payload(TrajectoryVotes(trajectory_id="g-01", group_id="g", steps=()))
    with redis.Redis.from_url(redis_url) as client:
        client.delete(JUDGE_QUEUE, "tf:trajectory:g-00")  # what a crash of the queue may lose
    await player.play(group())
    assert len(family.made) == 3
    assert {task.trajectory_id for task in sent(redis_url)} == {"g-00", "g-02"}
    assert await broker.trajectories(["g-00"]) != [None]


async def test_the_group_of_a_killed_worker_is_taken_over_where_it_stopped(
    broker: Broker, redis_url: str
) -> None:
    # the dead worker had stored one trajectory, and no process renews its lease
    dead = await play_episode(lambda: Two(Family(), 1), says_yes, TASK, group(), 1)
    dead = dead.model_copy(update={"seconds": 77.0})
    await broker.put_payload(dead)
    with redis.Redis.from_url(redis_url) as client:
        client.set("tf:lease:g", "dead", px=300)
    family = Family()
    player = worker(broker, family)
    await player.play(group())
    assert family.made == []

    async def free() -> bool:
        return not await broker.is_held("g")

    await until(free)
    await player.play(group())
    assert len(family.made) == 2
    played = await broker.group("g")
    assert played is not None
    assert played.trajectories[1] == dead
    assert {task.trajectory_id for task in sent(redis_url)} == {"g-00", "g-01", "g-02"}


async def test_a_trajectory_that_another_worker_stored_first_is_the_one_that_counts(
    broker: Broker,
) -> None:
    first = await play_episode(lambda: Two(Family(), 1), says_yes, TASK, group(), 0)
    first = first.model_copy(update={"seconds": 77.0})
    family = Family()

    async def store() -> None:
        await broker.put_payload(first)

    family.meanwhile = store
    await worker(broker, family).play(group(rollouts=1))
    played = await broker.group("g")
    assert played is not None
    assert played.trajectories == (first,)
    assert await broker.trajectories(["g-00"]) == [first]


async def test_a_task_that_the_store_does_not_know_is_an_error_and_frees_the_lease(
    broker: Broker,
) -> None:
    with pytest.raises(NotFoundError):
        await worker(broker, Family(), tasks=()).play(group())
    assert not await broker.is_held("g")


class Programs(Family):
    """A family whose responses are programs."""

    limits: ProgramLimits | None = ProgramLimits(cpu_s=1.0, wall_s=5.0, memory_bytes=2**27)

    def program_limits(self, task: Task) -> ProgramLimits | None:
        return self.limits


class Written(Family):
    """A family whose tasks have a rubric of their own, which may be malformed."""

    error: Exception | None = None

    def criteria(self, task: Task, options: Params) -> Criteria:
        if self.error:
            raise self.error
        return Criteria(rubric=(RubricPoint(text=task.instruction),), reference="yes")


POINT = RubricPoint(text=TASK.instruction)


@pytest.mark.parametrize(
    ("family", "asked", "shown"),
    [
        (Family(), {}, Criteria()),
        (Family(), {"reward_shows": ("reference",)}, Criteria(reference="yes\nyes")),
        (Family(), {"reward_shows": ("rubric", "episode")}, Criteria()),
        (Family(), {"reward_shows": ("reference",), "votes": 0}, Criteria()),
        (Written(), {"reward_shows": ("rubric", "reference")}, Criteria(rubric=(POINT,), reference="yes")),
        (Written(), {"reward_shows": ("rubric",)}, Criteria(rubric=(POINT,))),
    ],
)  # fmt: skip
async def test_a_rollout_carries_what_its_judge_is_to_be_shown_of_the_task(
    broker: Broker, redis_url: str, family: Family, asked: dict[str, Any], shown: Criteria
) -> None:
    await worker(broker, family).play(group(rollouts=1, **asked))
    (rollout,) = await broker.trajectories(["g-00"])
    assert rollout is not None
    assert rollout.criteria == shown
    jobs = sent(redis_url, kind=JudgeTask)
    assert [job.hindsight for job in jobs] == ["episode" in asked.get("reward_shows", ())] * len(
        jobs
    )


@pytest.mark.parametrize("error", [InputError("rubric: given 3"), KeyError("rubric")])
async def test_a_malformed_rubric_costs_no_rollout(broker: Broker, error: Exception) -> None:
    family = Written()
    family.error = error
    await worker(broker, family).play(group(rollouts=1, reward_shows=("rubric",)))
    (rollout,) = await broker.trajectories(["g-00"])
    assert rollout is not None
    assert (rollout.measured, rollout.criteria) == (True, Criteria())


async def test_a_group_of_programs_is_sent_for_tests_once_it_is_whole(
    broker: Broker, redis_url: str
) -> None:
    family, task = Programs(), group(reward_kind="cure")
    await worker(broker, family).play(task)
    expected = JudgeTask(
        scorer="cure", group_id="g", run_id="r", votes=2, seed=derive_seed(5, "judge"), sampling=JUDGE_SAMPLING,
        deadline_s=40.0, prompt="terse",
    )  # fmt: skip
    assert sent(redis_url, kind=JudgeTask) == [expected]
    played = await broker.group("g")
    assert played is not None
    assert played.programs == family.limits
    assert await announced(broker) == []
    await worker(broker, family).play(task)  # delivered again: the tests are not there yet
    assert sent(redis_url, kind=JudgeTask) == [expected] * 2
    await broker.put_payload(GroupJudgement(group_id="g", prompt_ids=(), texts=()))
    await worker(broker, family).play(task)
    assert len(sent(redis_url, kind=JudgeTask)) == 2
    assert await announced(broker) == ["g"]
