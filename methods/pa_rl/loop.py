"""Hooks of the training loop: the critic learns from each step's records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from methods.pa_rl.learning import ActionCritic
from methods.pa_rl.options import PaRlOptions
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from triforge.types import JudgedGroup


class PaRl(LoopHooks):
    """Trains the critic before the first step and in each step."""

    def __init__(self, run: MethodContext, options: PaRlOptions) -> None:
        super().__init__(run, options)
        self._critic = ActionCritic(run.parts.artifacts, run.run_id, run.config, options)

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Learn from the step's records; return measures."""
        return await asyncio.to_thread(self._critic.learn, step, samples.records)

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Learn from the offline run before the first step; return measures."""
        return await asyncio.to_thread(self._critic.learn, 0, []) if step == 0 else {}
