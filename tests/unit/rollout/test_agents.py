"""An environment of several agents: each has its own conversation, and the run's document says which model plays it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.trainer.credit.judged_groups import players
from tests.unit.rollout.counting import Count, Parrot, play
from triforge.clients.policy import ModelClients
from triforge.config import Settings, parse
from triforge.errors import ConfigError
from triforge.rollout.protocols import Reset, StepResult
from triforge.types import GenerateRequest, Sampling, Task

CONFIG = parse(
    {
        "models": {
            "policy": {"max_new_tokens": 4},
            "mover": {"max_new_tokens": 2, "agents": ["mover"]},
        }
    }
)


class InTurns(Count):
    """`Count` by two agents who answer in turns."""

    AGENTS = ("planner", "mover")

    async def reset(self, task: Task, *, seed: int) -> Reset:
        reset = await super().reset(task, seed=seed)
        return replace(reset, observation=replace(reset.observation, agent_id=self.AGENTS[0]))

    async def step(self, response: str) -> StepResult:
        result = await super().step(response)
        agent = self.AGENTS[self.n % 2]
        return replace(result, observation=replace(result.observation, agent_id=agent))


async def test_each_agent_has_a_conversation_of_its_own_with_the_model_that_plays_it() -> None:
    engine = Parrot()
    sampling = CONFIG.models.policy.sampling()
    trajectory = await play(InTurns(goal=4), engine, agents=players(CONFIG), sampling=sampling)
    assert [s.agent_id for s in trajectory.steps] == ["planner", "mover", "planner", "mover"]
    assert [s.segment for s in trajectory.steps] == [0, 1, 0, 1]
    assert [s.ids for s in trajectory.segments] == [(100, 101, 7, 8, 104, 7, 8)] * 2
    asked = engine.requests
    assert [r.model for r in asked] == ["policy", "mover", "policy", "mover"]
    assert [r.sampling.max_new_tokens for r in asked] == [4, 2, 4, 2]
    assert [[m.text for m in r.messages] for r in asked] == [
        ["count", "reach 3: 0"], ["count", "1"], ["2"], ["3"],
    ]  # fmt: skip
    assert asked[2].prefix_ids == asked[3].prefix_ids == (100, 101, 7, 8)


async def test_agents_that_no_model_names_are_played_by_the_policy() -> None:
    engine = Parrot()
    trajectory = await play(InTurns(), engine)
    assert {r.model for r in engine.requests} == {"policy"}
    assert len(trajectory.segments) == 2


async def test_a_model_that_nothing_serves_is_refused_with_what_to_set() -> None:
    request = GenerateRequest(model="mover", sampling=Sampling())
    with pytest.raises(ConfigError, match="TRIFORGE_MODELS=mover=http://host:port"):
        await ModelClients(Settings())(request)
