"""The batch of one model: its rows with the sections of the run's config that its learner reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triforge.config import RunConfig
from triforge.types import TrainBatch, TrainedRole, TrainRow


def batch_of(
    config: RunConfig,
    run_id: str,
    role: TrainedRole,
    step: int,
    rows: Sequence[TrainRow],
    **more: Any,
) -> TrainBatch:
    """Return the batch of a model's rows in a step of a run; `more` are its versions and further fields."""
    every = config.run.checkpoint_every
    due = step % every == 0 or step == config.run.steps
    return TrainBatch(
        batch_id=f"{run_id}-{step:05d}-{role}",
        run_id=run_id,
        role=role,
        step=step,
        num_rows=len(rows),
        num_tokens=sum(len(row.ids) for row in rows),
        algorithm=config.algorithm_of(role),
        learner=config.learner(role),
        critic=config.trainer.critic,
        staleness_bound=config.run.staleness_bound,
        temperature=getattr(config.models, role).temperature,
        seed=config.run.seed,
        keep=config.run.keep_checkpoints,
        checkpoint="before" if every == 1 else "after" if due else "none",
        colocate=config.run.colocate,
        **more,
    )
