"""The pool of one run and what changes its tasks: env_adapter's own store, planner and adaptation on a database file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from experiments.settings import Settings
from services.env_adapter.adaptation.adapter import make_adapter
from services.env_adapter.adaptation.settings import RunOutcome
from services.env_adapter.pools.creation import PoolMaker
from services.env_adapter.pools.plans import Planner
from services.env_adapter.pools.store import PoolStore
from triforge.environments.registry import family
from triforge.rollout.protocols import Environment, Generate
from triforge.store.database import open_database
from triforge.types import Params, PlannedGroup, PlanRequest, PoolRequest, Task

_ALL = 1_000_000


class Tasks:
    """The pool.

    Args:
        folder: for the database.
        settings: how many tasks of which kinds.
        seed: of the tasks.
        rewrites: the model that diagnoses and rewrites; None if nothing is rewritten by a model.
    """

    def __init__(
        self, folder: Path, settings: Settings, seed: int, rewrites: Generate | None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._database = open_database(f"sqlite:///{folder / 'tasks.sqlite'}")
        self._database.upgrade()
        self._store = PoolStore(self._database)
        self._planner = Planner(self._database)
        self._family = family("household")
        self._cache: dict[str, Task] = {}
        self._adapter = make_adapter(self._database, family, rewrites)
        options = {name: value for name, value in settings.options.items() if name != "labels"}
        head = PoolRequest(name="pool", environment="household", options=options)
        rows = _rows(settings, seed)
        state, _ = PoolMaker(self._database, family).create(head, rows)
        self.pool_id = state.id

    def make(self, options: Params) -> Environment:
        """Return a fresh environment."""
        return self._family.make(options)

    async def plan(self, pool_id: str, wanted: PlanRequest) -> list[PlannedGroup]:
        """Return what a step plays, as the orchestrator asks env_adapter for it."""
        return list((await asyncio.to_thread(self._planner.plan, pool_id, wanted)).items)

    async def read(self, task_id: str) -> Task:
        """Return a task version."""
        if task_id not in self._cache:
            self._cache[task_id] = await asyncio.to_thread(self._store.task, task_id)
        return self._cache[task_id]

    def training(self) -> list[Task]:
        """Return the tasks that are trained on, in the order of the pool."""
        pool = self._store.tasks(self.pool_id, split="train", limit=_ALL)
        return list(pool.items)

    async def accepted(self) -> dict[str, Task]:
        """Return the tasks by which others were replaced, replaced again or not."""
        made = self._store.proposals(self.pool_id, state="accepted", limit=_ALL).items
        return {str(p.candidate_id): await self.read(str(p.candidate_id)) for p in made}

    async def adapt(self, outcome: RunOutcome) -> None:
        """Handle an outcome as the job of the queue `adapt` does."""
        await self._adapter.handle(outcome)

    def counts(self) -> dict[str, Any]:
        """Proposals by state, and what became of null controls."""
        state = self._store.pool(self.pool_id)
        return {"proposals": state.proposals, "null_control": state.null_control}

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _rows(settings: Settings, seed: int) -> list[tuple[str, Any]]:
    """Training and held-out tasks of each kind; no task twice."""
    household = family("household")
    rows: list[tuple[str, Any]] = []
    seen: set[str] = set()
    for number, kind in enumerate(settings.pool()):
        need = kind.train + kind.heldout
        made = 0
        for params in household.generate(
            count=3 * need, seed=1_000 * seed + number, options=dict(kind.options)
        ):
            key = repr(sorted(params.items()))
            if made == need or key in seen:
                continue
            seen.add(key)
            split = "heldout" if made < kind.heldout else "train"
            rows.append((f"tasks[{len(rows)}]", {"params": params, "split": split}))
            made += 1
        if made < need:
            raise ValueError(f"only {made} different tasks of {need}; the options allow too few")
    return rows
