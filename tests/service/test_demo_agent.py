"""The demo's agent of ten lines: what its model says is played in its world, and its success is the session's reward."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from demo.agent import AGENTS
from demo.world import World
from environments.household.family import FAMILY
from tests.service.test_agent_run import Trainer
from tests.service.test_session_groups import Run, run
from triforge.types import Sampling, Task

__all__ = ["run"]
ROOT = Path(__file__).parents[2]


async def test_one_copy_solves_its_task_and_the_next_one_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await run.both.env.get(f"/v1/tasks/{run.tasks[0]}")
    task = Task.model_validate(found.json()["task"])
    options, sampling = {"wording": "terse"}, Sampling(max_new_tokens=64)
    solution = FAMILY.gold(task, options)
    assert solution is not None
    run.both.says(*solution, "think")
    command = [sys.executable, str(ROOT / "demo" / "agents" / f"{AGENTS[0]}.py")]
    async with World(options).served() as world:
        monkeypatch.setenv("WORLD_URL", world)
        await Trainer().plays(run, command, 1, rollouts=2, sampling=sampling)
    won, lost = sorted((await run.played()).trajectories, key=lambda t: -(t.outcome.value or 0))
    assert [t.outcome.value for t in (won, lost)] == [1, -1]
    assert [step.response for step in won.steps] == list(solution)
    assert {step.response for step in lost.steps} == {"think"}
    assert len(won.segments) == 1
