"""A pool and a run over REST, with progress on the screen; then everything the report needs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from demo.settings import DemoSettings
from triforge.cli.terminal import settings as addresses
from triforge.cli.watch import watch
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.types import PoolState, Proposal, RunState, RunStep


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a finished run left behind."""

    run: RunState
    steps: list[RunStep]
    pool: PoolState
    proposals: list[Proposal]
    seconds: float


async def play(settings: DemoSettings, state: Path, console: Console, export: Path) -> Record:
    """Submit the pool and the run, watch it to its end, export its record.

    Args:
        settings: tasks and seed.
        state: folder of the deployment.
        console: progress goes here.
        export: Parquet file to write.
    """
    where = addresses(state)
    env_adapter, trainer = EnvAdapterClient(where.env_adapter_url), TrainerClient(where.trainer_url)
    started = time.monotonic()
    try:
        pool = await env_adapter.create_pool(
            {
                "name": f"household-{int(time.time())}",
                "environment": "household",
                "options": settings.options,
                "generate": {
                    "count": settings.train_tasks,
                    "heldout": settings.heldout_tasks,
                    "seed": settings.seed,
                    "options": settings.generate,
                },
            }
        )
        console.print(f"pool {pool.name}: {pool.tasks}", highlight=False)
        run = await trainer.submit(pool.id, name="demo", config={"run": {"seed": settings.seed}})
        console.print(f"run {run.id}: {run.steps} training steps", highlight=False)
        run = await watch(console, trainer, run.id)
        seconds = time.monotonic() - started
        if run.step > 0:
            await trainer.export(run.id, export)
        return Record(
            run=run,
            steps=await trainer.steps(run.id),
            pool=await env_adapter.pool(pool.id),
            proposals=await env_adapter.proposals(pool.id),
            seconds=seconds,
        )
    finally:
        await env_adapter.close()
        await trainer.close()
