"""Playing one episode and one group, against an environment and a policy that fit on a page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from triforge.errors import EnvError, InputError, PolicyError, TriforgeError, UnavailableError
from triforge.messages import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    Sampling,
    Task,
    Trajectory,
    VersionSpan,
)
from triforge.rollout.episode import CONTEXT_FULL, play_episode, run_episode, run_group
from triforge.rollout.isolation import IsolatedEnvironment
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.rollout.seeds import derive_seed

TASK = Task(id="t", pool_id="p", slot="t", version=2, family="count", instruction="reach 3")


def group(**changes: object) -> GroupTask:
    fields: dict[str, object] = {
        "group_id": "g",
        "run_id": "r",
        "step": 0,
        "task_id": "t",
        "purpose": "train",
        "rollouts": 1,
        "seed": 5,
        "sampling": Sampling(max_new_tokens=4),
        "max_steps": 10,
        "deadline_s": 30.0,
        "retries": 0,
    }
    return GroupTask.model_validate(fields | changes)


class Count:
    """Says 0, 1, 2...; the task is solved when three responses were played."""

    def __init__(self, *, system: str = "count", goal: int = 3) -> None:
        self.system, self.goal, self.n = system, goal, 0
        self.closed = 0
        self.seeds: list[int] = []

    async def reset(self, task: Task, *, seed: int) -> Reset:
        self.seeds.append(seed)
        return Reset(observation=Observation(text=f"{task.instruction}: 0"), system=self.system)

    async def step(self, response: str) -> StepResult:
        self.n += 1
        won = self.n >= self.goal
        return StepResult(
            observation=Observation(text=str(self.n)),
            action=response.strip(),
            action_valid=response == "up",
            done=won,
            success=won,
            label=1 if response == "up" else -1,
        )

    async def close(self) -> None:
        self.closed += 1


class Parrot:
    """A policy that always says "up" (ids 7, 8) and renders a message as one id: 100 plus its place in the chat."""

    def __init__(self, *, version: int = 4, finish: str = "stop") -> None:
        self.version, self.finish = version, finish
        self.requests: list[GenerateRequest] = []

    def prompt(self, request: GenerateRequest) -> tuple[int, ...]:
        new = range(len(request.prefix_ids), len(request.prefix_ids) + len(request.messages))
        return (*request.prefix_ids, *(100 + n for n in new))

    def output(self) -> GenerateOutput:
        return GenerateOutput(
            text="up",
            ids=(7, 8),
            logprobs=(-0.5, -0.25),
            versions=(
                VersionSpan(version=self.version, start=0, end=1),
                VersionSpan(version=self.version + 1, start=1, end=2),
            ),
            finish=self.finish,  # type: ignore[arg-type]
        )

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        self.requests.append(request)
        return GenerateReply(prompt_ids=self.prompt(request), outputs=(self.output(),))


class Edits(Parrot):
    """From the third turn on the chat template drops the first message: the history is another one."""

    def prompt(self, request: GenerateRequest) -> tuple[int, ...]:
        whole = super().prompt(request)
        return whole[1:] if len(self.requests) == 3 else whole


async def play(environment: object, policy: object, **changes: object) -> Trajectory:
    return await run_episode(environment, policy, TASK, group(**changes), 1, patience_s=0.2)  # type: ignore[arg-type]


async def test_an_episode_that_reaches_the_goal_is_a_success_with_every_step_recorded() -> None:
    environment = Count()
    trajectory = await play(environment, Parrot())
    assert trajectory.id == "g-01"
    assert (trajectory.task_id, trajectory.task_version, trajectory.index) == ("t", 2, 1)
    assert trajectory.outcome.value == 1
    assert trajectory.outcome.error is None
    assert trajectory.system == "count"
    assert [step.observation for step in trajectory.steps] == ["reach 3: 0", "1", "2"]
    assert [step.next_observation for step in trajectory.steps] == ["1", "2", "3"]
    assert [step.index for step in trajectory.steps] == [0, 1, 2]
    assert {(s.response, s.action, s.action_valid, s.label) for s in trajectory.steps} == {
        ("up", "up", True, 1)
    }
    assert environment.closed == 1


async def test_the_ids_of_a_trajectory_are_the_engines_own_in_one_segment() -> None:
    trajectory = await play(Count(), Parrot())
    (segment,) = trajectory.segments
    assert segment.ids == (100, 101, 7, 8, 104, 7, 8, 107, 7, 8)
    assert segment.logprobs == (0, 0, -0.5, -0.25, 0, -0.5, -0.25, 0, -0.5, -0.25)
    assert [(s.start, s.end) for s in trajectory.steps] == [(2, 4), (5, 7), (8, 10)]
    assert all(segment.ids[s.start : s.end] == (7, 8) for s in trajectory.steps)


async def test_every_sampled_token_keeps_the_version_it_was_sampled_with() -> None:
    trajectory = await play(Count(goal=2), Parrot(version=4))
    spans = [(s.version, s.start, s.end) for s in trajectory.segments[0].versions]
    assert spans == [(4, 2, 3), (5, 3, 4), (4, 5, 6), (5, 6, 7)]


async def test_only_the_new_observation_is_rendered_and_the_rest_is_echoed() -> None:
    policy = Parrot()
    await play(Count(), policy)
    first, second, third = policy.requests
    assert [(m.role, m.content) for m in first.messages] == [
        ("system", "count"),
        ("user", "reach 3: 0"),
    ]
    assert first.prefix_ids == ()
    assert second.prefix_ids == (100, 101, 7, 8)
    assert [(m.role, m.content) for m in second.messages] == [("user", "1")]
    assert third.prefix_ids == (100, 101, 7, 8, 104, 7, 8)
    assert {request.affinity for request in policy.requests} == {"g"}


async def test_without_a_system_message_the_chat_begins_with_the_user() -> None:
    policy = Parrot()
    await play(Count(system=""), policy)
    assert [m.role for m in policy.requests[0].messages] == ["user"]


async def test_an_edited_history_begins_a_second_segment() -> None:
    trajectory = await play(Count(goal=4), Edits())
    first, second = trajectory.segments
    assert first.ids == (100, 101, 7, 8, 104, 7, 8)
    assert second.ids == (101, 7, 8, 104, 7, 8, 107, 7, 8, 109, 7, 8)
    assert second.logprobs == (0, 0, 0, 0, 0, 0, 0, -0.5, -0.25, 0, -0.5, -0.25)
    assert [(s.segment, s.start, s.end) for s in trajectory.steps] == [
        (0, 2, 4),
        (0, 5, 7),
        (1, 7, 9),
        (1, 10, 12),
    ]
    assert [(s.start, s.end) for s in second.versions] == [(7, 8), (8, 9), (10, 11), (11, 12)]


async def test_reaching_the_step_limit_is_a_failure_even_when_nothing_went_wrong() -> None:
    trajectory = await play(Count(goal=3), Parrot(), max_steps=2)
    assert trajectory.outcome.value == -1
    assert len(trajectory.steps) == 2


async def test_an_environment_that_ends_without_success_is_a_failure() -> None:
    class Lost(Count):
        async def step(self, response: str) -> StepResult:
            return StepResult(
                observation=Observation(text="over"),
                action="",
                action_valid=False,
                done=True,
                success=False,
            )

    trajectory = await play(Lost(), Parrot())
    assert trajectory.outcome.value == -1
    assert trajectory.steps[0].label is None


async def test_a_response_cut_at_its_length_is_still_played() -> None:
    trajectory = await play(Count(), Parrot(finish="length"))
    assert trajectory.outcome.value == 1
    assert {step.finish for step in trajectory.steps} == {"length"}


async def test_seeds_differ_by_rollout_and_turn_but_not_by_process_or_group_name() -> None:
    policy = Parrot()
    await play(Count(), policy)
    assert [r.sampling.seed for r in policy.requests] == [derive_seed(5, 1, t) for t in range(3)]
    assert derive_seed(5, 1, 0) == 1_364_511_781  # the same on every machine
    drawn = {derive_seed(s, k, t) for s in range(5) for k in range(5) for t in range(5)}
    assert len(drawn) == 125
    assert derive_seed(1, 23) != derive_seed(12, 3)


async def test_all_rollouts_of_a_group_start_in_the_same_world() -> None:
    made: list[Count] = []

    def make() -> Count:
        made.append(Count())
        return made[-1]

    await run_group(make, Parrot(), TASK, group(rollouts=3))
    assert len({seed for environment in made for seed in environment.seeds}) == 1


class Broken(Count):
    """Raises at the second step."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def step(self, response: str) -> StepResult:
        if self.n == 1:
            raise self.error
        return await super().step(response)


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (EnvError("the simulator died"), "environment", True),
        (RuntimeError("index out of range"), "environment", True),
        (TimeoutError("its own timeout"), "environment", True),
        (InputError("params: bad"), "input", False),
    ],
)
async def test_an_environment_that_raises_is_not_a_failure_of_the_policy(
    error: Exception, kind: str, retryable: bool
) -> None:
    environment = Broken(error)
    trajectory = await play(environment, Parrot())
    assert trajectory.outcome.value is None
    assert trajectory.outcome.error is not None
    assert (trajectory.outcome.error.kind, trajectory.outcome.error.retryable) == (kind, retryable)
    assert str(error) in trajectory.outcome.error.detail
    assert len(trajectory.steps) == 1  # what was played stays visible
    assert environment.closed == 1


async def test_an_environment_that_hangs_meets_the_deadline() -> None:
    class Hangs(Count):
        async def step(self, response: str) -> StepResult:
            await asyncio.Event().wait()
            raise AssertionError

    environment = Hangs()
    trajectory = await play(environment, Parrot(), deadline_s=0.05)
    assert trajectory.outcome.value is None
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == "deadline"
    assert "episode_deadline_s" in trajectory.outcome.error.detail
    assert environment.closed == 1


async def test_an_isolated_environment_that_blocks_meets_the_deadline_too() -> None:
    release, left = threading.Event(), threading.Event()

    class Blocks(Count):
        async def step(self, response: str) -> StepResult:
            release.wait(20)  # synchronous: nothing else runs in this loop
            left.set()
            return await super().step(response)

    environment = IsolatedEnvironment(Blocks, grace_s=0.05)
    trajectory = await play(environment, Parrot(), deadline_s=0.1)
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == "deadline"
    assert not left.is_set()
    before = {t for t in threading.enumerate() if t.name == "environment-t"}
    release.set()
    for thread in before:
        thread.join(10)
        assert not thread.is_alive()


async def test_an_isolated_environment_plays_as_it_would_by_itself_and_leaves_no_thread() -> None:
    made: list[Count] = []

    def make() -> Count:
        made.append(Count())
        return made[-1]

    alone = await play(Count(), Parrot())
    isolated = await play(IsolatedEnvironment(make), Parrot())
    assert isolated.model_copy(update={"seconds": 0.0}) == alone.model_copy(update={"seconds": 0.0})
    assert made[0].closed == 1
    for thread in threading.enumerate():
        if thread.name == "environment-t":
            thread.join(10)
            assert not thread.is_alive()


async def test_an_isolated_environment_passes_errors_on_and_may_be_closed_twice() -> None:
    def make() -> Count:
        raise InputError("options: unknown field wording")

    environment = IsolatedEnvironment(make)
    trajectory = await play(environment, Parrot())
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == "input"
    await environment.close()


class Fails(Parrot):
    """Raises at some calls, answers at the others."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__()
        self.errors = errors

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        reply = await super().__call__(request)
        if error := self.errors.get(len(self.requests)):
            raise error
        return reply


async def test_a_policy_that_is_away_for_a_moment_is_waited_for_in_mid_episode() -> None:
    away = UnavailableError("restarting", retry_after_s=0.01)
    policy = Fails({2: away, 3: away})
    trajectory = await play(Count(), policy)
    assert trajectory.outcome.value == 1
    assert trajectory.retries == 0
    assert len(policy.requests) == 5
    assert policy.requests[1] == policy.requests[2] == policy.requests[3]


async def test_a_policy_that_stays_away_is_an_infrastructure_failure() -> None:
    away = UnavailableError("nobody at 127.0.0.1:8001", retry_after_s=0.05)
    trajectory = await play(Count(), Fails(dict.fromkeys(range(100), away)))
    assert trajectory.outcome.value is None
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == "unavailable"


@pytest.mark.parametrize("error", [PolicyError("engine says 500"), KeyError("outputs")])
async def test_a_policy_that_errs_is_an_infrastructure_failure(error: Exception) -> None:
    trajectory = await play(Count(), Fails({1: error}))
    assert trajectory.outcome.error is not None
    assert (trajectory.outcome.error.kind, trajectory.outcome.value) == ("policy", None)


async def test_a_prompt_that_no_longer_fits_is_a_failure_of_the_policy_with_the_reason() -> None:
    full = InputError("the prompt has 4097 tokens, the model takes 4096")
    trajectory = await play(Count(), Fails({2: full}))
    assert trajectory.outcome.value == -1
    assert trajectory.outcome.error is not None
    assert (trajectory.outcome.error.kind, trajectory.outcome.error.detail) == (
        CONTEXT_FULL,
        full.detail,
    )
    assert len(trajectory.steps) == 1


async def test_a_first_prompt_that_does_not_fit_is_not_the_policys_doing() -> None:
    trajectory = await play(Count(), Fails({1: InputError("the prompt has 4097 tokens")}))
    assert trajectory.outcome.value is None
    assert trajectory.steps == ()
    assert trajectory.segments == ()


def replies() -> Iterator[GenerateReply]:
    good = Parrot().output()
    yield GenerateReply(prompt_ids=(1,), outputs=())
    yield GenerateReply(prompt_ids=(1,), outputs=(good, good))
    yield GenerateReply(prompt_ids=(), outputs=(good,))
    yield GenerateReply(prompt_ids=(1,), outputs=(good.model_copy(update={"finish": "abort"}),))
    yield GenerateReply(prompt_ids=(1,), outputs=(good.model_copy(update={"logprobs": (-1.0,)}),))
    yield GenerateReply(prompt_ids=(1,), outputs=(good.model_copy(update={"versions": ()}),))


@pytest.mark.parametrize("reply", list(replies()))
async def test_a_sample_that_could_not_be_trained_on_is_not_played(reply: GenerateReply) -> None:
    async def policy(request: GenerateRequest) -> GenerateReply:
        return reply

    environment = Count()
    trajectory = await play(environment, policy)
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == "policy"
    assert environment.n == 0


def recovering(errors: list[TriforgeError]) -> tuple[Callable[[], Count], list[Count]]:
    """A factory whose first environments break with `errors`; and what it made."""
    made: list[Count] = []

    def make() -> Count:
        made.append(Broken(errors[len(made)]) if len(made) < len(errors) else Count())
        return made[-1]

    return make, made


async def test_an_infrastructure_failure_is_tried_again_with_a_fresh_environment() -> None:
    make, made = recovering([EnvError("crash")])
    trajectory = await play_episode(make, Parrot(), TASK, group(retries=2), 0)
    assert trajectory.outcome.value == 1
    assert trajectory.retries == 1
    assert len(trajectory.steps) == 3
    assert [environment.closed for environment in made] == [1, 1]
    assert made[0].seeds == made[1].seeds


async def test_retries_come_to_an_end() -> None:
    make, made = recovering([EnvError(f"crash {n}") for n in range(9)])
    trajectory = await play_episode(make, Parrot(), TASK, group(retries=1), 0)
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.detail == "crash 1"
    assert trajectory.retries == 1
    assert len(made) == 2


async def test_what_cannot_succeed_later_is_not_tried_again() -> None:
    make, made = recovering([InputError("params.goal: unknown")])  # type: ignore[list-item]
    trajectory = await play_episode(make, Parrot(), TASK, group(retries=5), 0)
    assert trajectory.outcome.value is None
    assert len(made) == 1


async def test_an_environment_that_cannot_be_made_is_data_too() -> None:
    def make() -> Count:
        raise OSError("no display")

    trajectory = await play_episode(make, Parrot(), TASK, group(), 0)
    assert trajectory.outcome.error is not None
    assert "no display" in trajectory.outcome.error.detail


async def test_one_failed_episode_does_not_fail_its_group() -> None:
    make, _ = recovering([EnvError("crash")])
    played = await run_group(make, Parrot(), TASK, group(rollouts=3))
    assert [t.id for t in played.trajectories] == ["g-00", "g-01", "g-02"]
    assert sorted(t.measured for t in played.trajectories) == [False, True, True]


async def test_no_more_episodes_run_than_there_are_slots() -> None:
    running, most = 0, 0

    class Busy(Count):
        async def reset(self, task: Task, *, seed: int) -> Reset:
            nonlocal running, most
            running += 1
            most = max(most, running)
            return await super().reset(task, seed=seed)

        async def step(self, response: str) -> StepResult:
            await asyncio.sleep(0)
            return await super().step(response)

        async def close(self) -> None:
            nonlocal running
            running -= 1

    played = await run_group(Busy, Parrot(), TASK, group(rollouts=7), slots=asyncio.Semaphore(2))
    assert len(played.trajectories) == 7
    assert (most, running) == (2, 0)


async def test_known_rollouts_are_not_played_again_and_the_first_writers_word_counts() -> None:
    known = (await play(Count(), Parrot())).model_copy(update={"seconds": 77.0})
    told: list[str] = []

    async def ended(trajectory: Trajectory) -> Trajectory:
        told.append(trajectory.id)
        return trajectory.model_copy(update={"seconds": 99.0})

    played = await run_group(
        Count, Parrot(), TASK, group(rollouts=3), known={1: known}, ended=ended
    )
    assert sorted(told) == ["g-00", "g-02"]
    assert [t.seconds for t in played.trajectories] == [99.0, 77.0, 99.0]


async def test_an_error_of_the_one_who_is_told_ends_the_group() -> None:
    environments: list[Count] = []

    class Waits(Count):
        async def step(self, response: str) -> StepResult:
            environments.append(self)
            if len(environments) > 1:
                await asyncio.Event().wait()
            return await super().step(response)

    async def ended(trajectory: Trajectory) -> Trajectory:
        raise UnavailableError("Redis does not answer")

    with pytest.raises(UnavailableError):
        await run_group(lambda: Waits(goal=1), Parrot(), TASK, group(rollouts=2), ended=ended)
    assert [environment.closed for environment in environments] == [1, 1]
