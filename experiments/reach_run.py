"""The rates of tasks and of all their rewrites, under the policy of the warm start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from environments.household.family import FAMILY
from experiments.loop import Run, rewritten
from experiments.reach import HIGH, LOW, ReachSettings
from triforge.types import Direction, Task

_ALL = 1_000_000


class ReachRun(Run):
    """Plays tasks of the pool; those outside the band with every rewrite that the family offers."""

    async def _measure(self) -> Sequence[str]:
        """Return the parts of the result; a row a task outside the band in `tasks`."""
        rows = []
        for kind, task in self._asked():
            parent = await self._rate_of(task)
            rate = parent[0] / parent[1]
            if LOW <= rate <= HIGH:
                continue
            rows.append({"kind": kind, "parent": parent, **await self._rewrites(task, rate < LOW)})
        self._result.tasks = {"rows": rows}
        return ("tasks",)

    def _asked(self) -> list[tuple[str, Task]]:
        """Return the first training tasks of each kind of the pool."""
        assert isinstance(self._settings, ReachSettings)
        pool = self._deployment.tasks.tasks(self._pool, split="train", limit=_ALL)
        tasks, chosen = iter(pool.items), []
        for kind in self._settings.pool():
            made = [next(tasks) for _ in range(kind.train)]
            chosen += [(kind.name, task) for task in made[: self._settings.asked]]
        return chosen

    async def _rewrites(self, task: Task, easier: bool) -> dict[str, Any]:
        way: Direction = "easier" if easier else "harder"
        menu = FAMILY.rewrite_menu(task, way).combinations
        drafts = [FAMILY.apply_rewrite(task, dict(answer)) for answer in menu]
        candidates = [rewritten(task, draft, number) for number, draft in enumerate(drafts)]
        rates = await asyncio.gather(*map(self._rate_of, candidates))
        kept = [rate for rate, one in zip(rates, candidates, strict=True) if one.kind == task.kind]
        other = [rate for rate, one in zip(rates, candidates, strict=True) if one.kind != task.kind]
        return {"direction": way, "kept": kept, "other": other}

    async def _rate_of(self, task: Task) -> list[int]:
        assert isinstance(self._settings, ReachSettings)
        return await self.rate(task, self._settings.measured)
