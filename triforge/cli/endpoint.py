"""Held-out tasks that this process plays with a model behind an OpenAI-compatible endpoint; no service is needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from triforge.cli.figures import MODES, TASKS, Played, mode_of
from triforge.clients.openai import Conversations, OpenAIGenerate
from triforge.config import RunConfig
from triforge.environments import registry
from triforge.environments.tasks import CheckedTasks, check_pool, request_of
from triforge.event_loop import together
from triforge.rollout.episode import run_group
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.seeds import nth_seed
from triforge.types import GroupTask, Params, Task

_AT_ONCE: Final = 16  # episodes


def heldout_tasks(
    environment: str, count: int, seed: int, generate: Params, options: Params
) -> list[Task]:
    """Return the first held-out tasks that `triforge train` makes of a family with this seed."""
    spec = {"count": TASKS, "heldout": count, "seed": seed, "options": generate, "at_most": True}
    body = {"name": environment, "environment": environment, "options": options, "generate": spec}
    with CheckedTasks() as checked:
        check_pool(registry.family(environment), request_of(body), (), checked)
        drafts = [draft for split, draft in checked if split == "heldout"]
    return [
        Task(id=f"task-{n}", pool_id="", slot="", family=environment, instruction=draft.instruction, params=draft.params)
        for n, draft in enumerate(drafts)
    ]  # fmt: skip


async def play(endpoint: str, model: str, tasks: Sequence[Task], config: RunConfig) -> list[Played]:
    """Play tasks, sampled and perhaps greedily, as the evaluation of a run does."""
    slots, environment = asyncio.Semaphore(_AT_ONCE), config.env_adapter
    key = os.environ.get("OPENAI_API_KEY", "")

    def group(mode: str, number: int, task: Task) -> GroupTask:
        greedy = mode == "greedy"
        return GroupTask(
            group_id=f"{model}-00000-{mode}-{number:04d}", run_id="", step=0, task_id=task.id, purpose="evaluate",
            rollouts=1 if greedy else config.run.eval_rollouts, seed=nth_seed(config.run.seed, number),
            sampling=config.models.policy.sampling(greedy=greedy), env_adapter=environment,
        )  # fmt: skip

    async with OpenAIGenerate(endpoint, model, api_key=key) as generate:
        await generate.demand_answer()
        player, modes = Conversations(generate), MODES if config.run.eval_greedy else MODES[:1]
        played = await together(
            run_group(
                partial(fresh_environment, registry.family(task.family), environment.options),
                player,
                task,
                group(mode, number, task),
                slots=slots,
            )
            for mode in modes
            for number, task in enumerate(tasks)
        )
    return [
        Played(
            mode_of(one.group.group_id), one.task.id, one.task.instruction, episode.outcome.value, episode.outcome.score,
            episode.outcome.error.detail if episode.outcome.error else "",
        )
        for one in played
        for episode in one.trajectories
    ]  # fmt: skip
