"""What a task's own verifier says of the final answer of an agent."""

from __future__ import annotations

from triforge.environments.registry import family
from triforge.errors import ConfigError
from triforge.rollout.isolation import fresh_environment
from triforge.types import Params, SessionReward, Task


async def verified(task: Task, options: Params, answer: str) -> SessionReward:
    """The reward of an answer; ConfigError if the family cannot say it from one answer alone."""
    environment = fresh_environment(family(task.family), options)
    try:
        await environment.reset(task, seed=0)
        found = await environment.step(answer)
    finally:
        await environment.close()
    score = found.reward if found.score is None else found.score
    if not found.done or (score is None and found.success is None):
        raise ConfigError(
            f"--reward verifier: given tasks of the family {task.family}, expected a family whose episodes end with one answer "
            "and a score, such as prompts, code or reasoning_gym; let the agent give its reward itself"
        )
    return SessionReward(score=score, success=found.success)
