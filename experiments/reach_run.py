"""The rates of tasks and of all their rewrites, under the policy of the warm start."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from environments.household.family import FAMILY
from experiments.loop import Run
from experiments.loop import play as play_run
from experiments.reach import HIGH, LOW, ReachSettings
from experiments.record import Models, Result, Tell, silent
from experiments.settings import Arm, Settings
from triforge.types import Direction, Task


class ReachRun(Run):
    """Plays tasks of the pool; those outside the band with every rewrite that the family offers."""

    async def play(self) -> Result:
        """Return a row a task outside the band."""
        started, result = time.monotonic(), Result(self._name, self._seed)
        rows = []
        for kind, task in self._asked():
            parent = await self._rate_of(task)
            rate = parent[0] / parent[1]
            if LOW <= rate <= HIGH:
                continue
            rows.append({"kind": kind, "parent": parent, **await self._rewrites(task, rate < LOW)})
        result.tasks = {"rows": rows}
        result.seconds = time.monotonic() - started
        rest = ("arm", "seed", "tasks", "seconds")
        self._tell({name: getattr(result, name) for name in rest})
        return result

    def _asked(self) -> list[tuple[str, Task]]:
        """Return the first training tasks of each kind of the pool."""
        assert isinstance(self._settings, ReachSettings)
        tasks, found = iter(self._tasks.training()), []
        for kind in self._settings.pool():
            made = [next(tasks) for _ in range(kind.train)]
            found += [(kind.name, task) for task in made[: self._settings.asked]]
        return found

    async def _rewrites(self, task: Task, easier: bool) -> dict[str, Any]:
        way: Direction = "easier" if easier else "harder"
        drafts = [
            FAMILY.apply_rewrite(task, dict(answer))
            for answer in FAMILY.rewrite_menu(task, way).combinations
        ]
        rates = await asyncio.gather(
            *(
                self._rate_of(
                    task.model_copy(
                        update={
                            "id": f"{task.id}-{number}", "params": draft.params, "instruction": draft.instruction, "kind": draft.kind,
                        }
                    )
                )
                for number, draft in enumerate(drafts)
            )
        )  # fmt: skip
        kept = [rate for rate, draft in zip(rates, drafts, strict=True) if draft.kind == task.kind]
        other = [rate for rate, draft in zip(rates, drafts, strict=True) if draft.kind != task.kind]
        return {"direction": way, "kept": kept, "other": other}

    async def _rate_of(self, task: Task) -> list[int]:
        assert isinstance(self._settings, ReachSettings)
        return await self.rate(task, self._settings.measured)


def play(
    name: str, arm: Arm, seed: int, settings: Settings, models: Models, *, tell: Tell = silent
) -> Result:
    """Play one seed in this process."""
    return play_run(name, arm, seed, settings, models, tell=tell, make=ReachRun)
