"""Playing one episode and one group when all goes well."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.unit.rollout.counting import TASK, Count, Parrot, group, play
from triforge.rollout.episode import run_group
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.rollout.seeds import derive_seed
from triforge.types import GenerateRequest, Task, Trajectory


class Edits(Parrot):
    """From the third turn on the chat template drops the first message: the history is another one."""

    def prompt(self, request: GenerateRequest) -> tuple[int, ...]:
        whole = super().prompt(request)
        return whole[1:] if len(self.requests) == 3 else whole


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
    assert [request.after_system for request in policy.requests] == [False, True, True]


async def test_without_a_system_message_the_chat_begins_with_the_user() -> None:
    policy = Parrot()
    await play(Count(system=""), policy)
    assert [m.role for m in policy.requests[0].messages] == ["user"]
    assert not any(request.after_system for request in policy.requests)


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
    announced: list[str] = []

    async def ended(trajectory: Trajectory) -> Trajectory:
        announced.append(trajectory.id)
        return trajectory.model_copy(update={"seconds": 99.0})

    played = await run_group(
        Count, Parrot(), TASK, group(rollouts=3), known={1: known}, ended=ended
    )
    assert sorted(announced) == ["g-00", "g-02"]
    assert [t.seconds for t in played.trajectories] == [99.0, 77.0, 99.0]


class Apis(Count):
    """Names other APIs at every step."""

    async def reset(self, task: Task, *, seed: int) -> Reset:
        await super().reset(task, seed=seed)
        return Reset(observation=Observation(text="0", admissible=("left", "right (0)")))

    async def step(self, response: str) -> StepResult:
        result = await super().step(response)
        return replace(result, observation=Observation(text="on", admissible=(f"api {self.n}",)))


async def test_the_decoder_is_held_to_the_admissible_commands_of_each_turn_if_asked() -> None:
    policy, free = Parrot(), Parrot()
    await play(Apis(), policy, admissible_only=True)
    await play(Apis(), free)
    assert [r.sampling.regex for r in policy.requests] == [r"left|right \(0\)", "api 1", "api 2"]
    assert {r.sampling.regex for r in free.requests} == {None}
