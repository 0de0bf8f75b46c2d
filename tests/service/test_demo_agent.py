"""The demo's agent of ten lines: what its model says is played in its world, and its success is the session's reward."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI

from demo.agent import AGENTS
from demo.world import World
from environments.household.family import FAMILY
from tests.service.test_policy_http import serving
from tests.service.test_session_groups import RUN, Run, run
from triforge.cli.agent import Agents
from triforge.config import Settings
from triforge.types import RunState, Sampling, Task

__all__ = ["run"]
ROOT = Path(__file__).parents[2]
STATE = RunState.model_validate_json((ROOT / "tests/contract/types/RunState.json").read_text())


async def test_one_copy_solves_its_task_and_the_next_one_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, app = ["running"], FastAPI()

    @app.get("/v1/runs/{run_id}")
    def show(run_id: str) -> RunState:
        return STATE.model_copy(update={"id": run_id, "status": status[0]})

    found = await run.both.env.get(f"/v1/tasks/{run.tasks[0]}")
    task = Task.model_validate(found.json()["task"])
    options, sampling = {"wording": "terse"}, Sampling(max_new_tokens=64)
    solution = FAMILY.gold(task, options)
    assert solution is not None
    run.both.says(*solution, "think")
    command = [sys.executable, str(ROOT / "demo" / "agents" / f"{AGENTS[0]}.py")]
    async with serving(app) as (url, _), World(options).served() as world:
        monkeypatch.setenv("WORLD_URL", world)
        settings = Settings(trainer_url=url, env_adapter_url=run.both.env_url)
        serve = asyncio.create_task(Agents(settings, command, parallel=1).serve("", RUN, "", {}))
        await asyncio.wait_for(run.play(run.group(rollouts=2, retries=0, sampling=sampling)), 30)
        status[0] = "finished"
        await asyncio.wait_for(serve, 10)
    won, lost = sorted((await run.played()).trajectories, key=lambda t: -(t.outcome.value or 0))
    assert [t.outcome.value for t in (won, lost)] == [1, -1]
    assert [step.response for step in won.steps] == list(solution)
    assert {step.response for step in lost.steps} == {"think"}
    assert len(won.segments) == 1
