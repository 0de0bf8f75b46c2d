"""A failure of an episode is data: its kind, and whether it was tried again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.unit.rollout.counting import TASK, Count, Parrot, group, play
from triforge.errors import (
    ContextFullError,
    EnvError,
    InputError,
    PolicyError,
    TriforgeError,
    UnavailableError,
)
from triforge.rollout.episode import play_episode, run_group
from triforge.rollout.isolation import IsolatedEnvironment
from triforge.rollout.protocols import StepResult
from triforge.types import GenerateReply, GenerateRequest, Trajectory


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
    ours = isinstance(error, TriforgeError)  # which say themselves what is wrong
    assert ("test_episode_failures.py:35)" in trajectory.outcome.error.detail) is not ours
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


@pytest.mark.parametrize(
    ("error", "turns", "kind"),
    [
        (UnavailableError("no answer", retry_after_s=0.05), range(100), "unavailable"),
        (PolicyError("engine says 500"), (1,), "policy"),
        (KeyError("outputs"), (1,), "policy"),
        (ContextFullError("the prompt has 4097 tokens"), (1,), "context_full"),  # at the first turn
        (InputError("regex: the engine has no grammar"), (2,), "input"),
    ],
)
async def test_a_failure_of_the_infrastructure_is_not_one_of_the_policy(
    error: Exception, turns: Sequence[int], kind: str
) -> None:
    trajectory = await play(Count(), Fails(dict.fromkeys(turns, error)))
    assert trajectory.outcome.value is None
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == kind


async def test_a_prompt_that_no_longer_fits_is_a_failure_of_the_policy_with_the_reason() -> None:
    full = ContextFullError("the prompt has 4097 tokens, the model takes 4096")
    trajectory = await play(Count(), Fails({2: full}))
    assert trajectory.outcome.value == -1
    assert trajectory.outcome.error is not None
    assert (trajectory.outcome.error.kind, trajectory.outcome.error.detail) == (
        "context_full",
        full.detail,
    )
    assert len(trajectory.steps) == 1


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


async def test_an_error_of_the_callback_ends_the_group() -> None:
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


async def test_an_environment_that_does_not_close_keeps_its_outcome() -> None:
    class Stuck(Count):
        async def close(self) -> None:
            raise RuntimeError("window is gone")

    trajectory = await play(Stuck(), Parrot())
    assert trajectory.outcome.value == 1
