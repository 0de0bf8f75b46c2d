"""A trainer that plays household by its expert, through the sidecar's client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from triforge.environments import registry
from triforge.rollout.protocols import Environment
from triforge.sidecar import DrawnTask, Rollout, Sidecar
from triforge.types import Task


class FakeTrainer:
    """A trainer whose policy always wins first versions of tasks (if not `careless`), and every other time rewritten ones, by its expert."""

    def __init__(self, sidecar: Sidecar, *, careless: bool = False) -> None:
        self.sidecar, self.version, self._careless = sidecar, 0, careless
        self._family, self._rng = registry.family("household"), random.Random(1)

    def step(self, n: int) -> Any:
        """Draw, play and report once; return the tasks, the rollouts and their credit."""
        tasks = self.sidecar.draw(n)
        rollouts = self.play(tasks)
        credits = self.sidecar.report(rollouts, policy_version=self.version)
        self.version += 7
        return tasks, rollouts, credits

    def play(self, tasks: Sequence[DrawnTask]) -> list[Rollout]:
        return [
            asyncio.run(self._play(task, name, number % 2 == 0 or self._always(task)))
            for task in tasks
            for number, name in enumerate(task.rollouts)
        ]

    def _always(self, task: DrawnTask) -> bool:
        return not self._careless and not task.task["version"]

    async def _play(self, drawn: DrawnTask, name: str, wins: bool) -> Rollout:
        task = Task.model_validate(drawn.task)
        environment: Environment = self._family.make(drawn.options)
        start = await environment.reset(task, seed=1)
        moves = list(self._family.gold(task, drawn.options) or ())
        messages = [{"role": "user", "content": start.observation.text}]
        result, seen = None, start.observation
        while result is None or (not result.done and len(messages) < 20):
            say = moves.pop(0) if wins else self._rng.choice(seen.admissible[:2])
            result = await environment.step(say)
            seen = result.observation
            messages += [
                {"role": "assistant", "content": say},
                {"role": "user", "content": seen.text},
            ]
        return Rollout(name, messages, success=bool(result.done and result.success))
