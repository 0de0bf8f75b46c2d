"""Tree rollouts: K candidates a turn in one state, of which the best is played on."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from environments.plan_path.family import FAMILY
from methods.at_grpo.tree import candidate_reward
from tests.unit.methods.at_grpo.softmax import Table
from tests.unit.rollout.counting import TASK, Count, Parrot, group
from triforge.rollout.episode import run_group
from triforge.rollout.protocols import Forks, Observation, StepResult
from triforge.types import GroupTask, Task, Trajectory, TrajectoryGroup

WORDS = ("north", "east", "south", "west", "up", "right", "down", "left")
GRID = {"grid": ["S__", "_#_", "__G"], "horizon": 4}


def task() -> Task:
    draft = FAMILY.validate(GRID)
    return Task(
        id="t", pool_id="p", slot="t", family="plan_path", instruction=draft.instruction, params=draft.params
    )  # fmt: skip


def tree(**changes: Any) -> GroupTask:
    return group(rollouts=4, strategy="at_grpo", **changes)


class Unforked:
    """The grid without its fork."""

    def __init__(self) -> None:
        inner = FAMILY.make({})
        self.reset, self.step, self.close = inner.reset, inner.step, inner.close


async def played(make: Any = lambda: FAMILY.make({}), **changes: Any) -> TrajectoryGroup:
    return await run_group(make, Table(WORDS), task(), tree(**changes))


def turns(found: TrajectoryGroup) -> list[list[Any]]:
    return [[*row] for row in zip(*(t.steps for t in found.trajectories), strict=True)]


async def test_steps_of_different_turns_or_agents_never_share_a_state() -> None:
    found = turns(await played())
    assert len(found) > 2
    assert [row[0].agent_id for row in found[:3]] == ["planner", "mover", "planner"]
    for index, row in enumerate(found):
        assert {step.agent_id for step in row} == {row[0].agent_id}
        (state,) = {step.state for step in row}
        assert state.startswith(f"{index}/{row[0].agent_id}/")
        assert [step.chosen for step in row].count(True) == 1
    assert len({row[0].state for row in found}) == len(found)


async def test_the_best_is_played_on_and_of_equal_ones_the_first() -> None:
    found = turns(await played())
    for row, following in itertools.pairwise(found):
        worth = [step.reward for step in row]
        best = worth.index(max(worth))
        assert [step.chosen for step in row] == [n == best for n in range(4)]
        assert {step.observation for step in following} == {row[best].next_observation}
    assert any(len({step.next_observation for step in row}) > 1 for row in found)


async def test_every_candidate_keeps_its_own_tokens_after_those_that_were_played() -> None:
    found = await played()
    chosen: dict[str, tuple[int, ...]] = {}
    for row in turns(found):
        tokens = [t.segments[s.segment] for t, s in zip(found.trajectories, row, strict=True)]
        before = chosen.get(row[0].agent_id, ())
        for step, segment in zip(row, tokens, strict=True):
            assert segment.ids[: len(before)] == before
            assert (step.start, step.end) == (len(before) + 1, len(before) + 2)
            assert WORDS[segment.ids[step.start]] == step.response
            assert segment.logprobs[step.start] < 0.0
            assert any(s.start <= step.start < s.end for s in segment.versions)
        best = next(n for n, step in enumerate(row) if step.chosen)
        chosen[row[0].agent_id] = tokens[best].ids[: row[best].end]


async def test_the_rollouts_of_a_tree_end_as_what_was_played() -> None:
    found = await played(seed=11)
    line = [step for row in turns(found) for step in row if step.chosen]
    environment = FAMILY.make({})
    await environment.reset(task(), seed=0)
    results = [await environment.step(step.response) for step in line]
    assert [r.observation.text for r in results] == [step.next_observation for step in line]
    assert [candidate_reward(r, 1.0) for r in results] == [step.reward for step in line]
    earned = sum(r.reward or 0.0 for r in results)
    assert {t.outcome.value for t in found.trajectories} == {1 if results[-1].success else -1}
    assert [t.score for t in found.trajectories] == pytest.approx([earned] * 4)


async def test_a_forked_environment_and_one_that_was_played_again_are_equal() -> None:
    assert isinstance(FAMILY.make({}), Forks)
    assert not isinstance(Unforked(), Forks)
    for seed in (5, 6):
        forked, again = await played(seed=seed), await played(Unforked, seed=seed)
        same = [
            [t.model_copy(update={"seconds": 0.0}) for t in g.trajectories] for g in (forked, again)
        ]
        assert same[0] == same[1]


async def test_an_environment_that_differs_when_played_again_is_refused() -> None:
    made = iter(range(100))

    class Chance(Count):
        async def step(self, response: str) -> StepResult:
            found = await super().step(response)
            return replace(
                found, observation=Observation(text=f"{found.observation.text} {next(made)}")
            )

    class Varied(Parrot):
        async def __call__(self, request: Any) -> Any:
            reply = await super().__call__(request)
            output = reply.outputs[0].model_copy(update={"text": f"up {len(self.requests)}"})
            return reply.model_copy(update={"outputs": (output,)})

    found = await run_group(Chance, Varied(), TASK, tree())
    assert not any(t.measured for t in found.trajectories)
    error = found.trajectories[0].outcome.error
    assert error is not None
    assert not error.retryable


async def test_every_environment_of_a_tree_is_closed() -> None:
    made: list[Unforked] = []

    class Watched(Unforked):
        def __init__(self) -> None:
            super().__init__()
            self.open, inner = True, self.close

            async def close() -> None:
                self.open = False
                await inner()

            self.close = close
            made.append(self)

    await played(Watched)
    assert len(made) > 4
    assert not any(one.open for one in made)


async def test_equal_candidates_are_tried_once() -> None:
    made: list[Count] = []

    def make() -> Count:
        made.append(Count())
        return made[-1]

    found = await run_group(make, Parrot(), TASK, tree())
    assert len(made) == 1
    assert [len(t.steps) for t in found.trajectories] == [3] * 4
    assert {step.reward for row in turns(found)[:2] for step in row} == {0.0}
    assert {step.reward for step in turns(found)[2]} == {
        1.0
    }  # success, where nothing else is earned


@pytest.mark.parametrize("purpose", ["evaluate", "measure_parent", "measure_candidate"])
async def test_what_measures_the_policy_is_no_tree(purpose: str) -> None:
    found = await played(purpose=purpose)
    assert {step.state for t in found.trajectories for step in t.steps} == {""}
    assert len({t.steps[0].response for t in found.trajectories}) > 1


async def test_a_second_delivery_keeps_what_is_stored() -> None:
    first = await played()
    ended: list[int] = []

    async def keep(trajectory: Trajectory) -> Trajectory:
        ended.append(trajectory.index)
        return trajectory

    known = {n: first.trajectories[n] for n in (0, 2)}
    again = await run_group(
        lambda: FAMILY.make({}), Table(WORDS), task(), tree(), known=known, ended=keep
    )
    assert ended == [1, 3]
    assert [t.steps for t in again.trajectories] == [t.steps for t in first.trajectories]


@pytest.mark.parametrize(
    ("given", "worth"),
    [
        ({"reward": 0.5, "local": 0.25}, 1.25), ({"local": 0.8, "done": True, "success": True}, 2.8),
        ({"done": True, "success": False}, 0.0), ({"success": True}, 0.0), ({"done": True, "score": 0.3}, 0.6),
    ],
)  # fmt: skip
def test_a_candidate_is_worth_its_teams_reward_and_its_own(
    given: dict[str, Any], worth: float
) -> None:
    usual = {"observation": Observation(text=""), "action": "", "action_valid": True, "done": False}
    assert candidate_reward(StepResult(**usual | given), 2.0) == pytest.approx(worth)
