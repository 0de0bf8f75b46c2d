"""The loop part of EnvRL: rows of both objectives in the policy's batch, and their weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from methods.envrl.options import EnvRLOptions, Objective
from methods.envrl.rows import auxiliary_rows
from services.trainer.credit.samples import Samples, training_groups
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from triforge.rendering import Renderer
from triforge.rollout.seeds import derive_seed
from triforge.types import JudgedGroup, TrainBatch, TrainRow


class EnvRL(LoopHooks):
    """Adds rows with the chat template of the policy's initial folder."""

    options: EnvRLOptions

    def __init__(self, run: MethodContext, options: EnvRLOptions) -> None:
        super().__init__(run, options)
        self._renderer: Renderer | None = None
        self._measures: Measures = {}

    async def more_samples(
        self, step: int, groups: Sequence[JudgedGroup], samples: Samples
    ) -> list[TrainRow]:
        """Return the rows of both objectives; none in a step that trains on nothing.

        Raises:
            InputError: the chat template refuses an item.
            WeightsError: the model folder has no readable tokenizer.
        """
        trained = samples.reasons["trained"]
        self._measures = {}
        if not self.options.wanted or not (trained or any(self._weights(step).values())):
            return []
        return await asyncio.to_thread(self._rows, step, groups, trained)

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Return the measures of the rows."""
        return self._measures

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:
        """Put the weights of this step into the policy's batch."""
        if batch.role != "policy" or not self.options.wanted:
            return batch
        own = {"weights": self._weights(step)}
        return batch.model_copy(update={"extra": {**batch.extra, self.run.name: own}})

    def _weights(self, step: int) -> dict[Objective, float]:
        """Return the weight of each objective in a training step."""
        return self.options.weights(step, self.run.config.run.steps)

    def _rows(self, step: int, groups: Sequence[JudgedGroup], trained: int) -> list[TrainRow]:
        config = self.run.config
        if self._renderer is None:
            self._renderer = Renderer.from_folder(config.models.policy.path)
        made = auxiliary_rows(
            training_groups(groups, config.algorithm.resolved),
            self.options,
            self._renderer,
            trained=trained,
            max_tokens=config.trainer.policy.max_tokens,
            seed=derive_seed(config.run.seed, "auxiliary", step),
        )
        self._measures = made.measures
        return made.rows
