"""A method of a user's own: it halves the policy's step size, counts its steps, and ends the run when its limit is reached."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from services.trainer.loop.hooks import LoopHooks, Measures
from triforge.config.methods import MethodOptions
from triforge.methods import Method
from triforge.types import TrainBatch


class Options(MethodOptions):
    """Options of the method."""

    limit: int = Field(1, ge=1)
    """Steps of the run."""


class Hooks(LoopHooks):
    options: Options

    async def batch(self, step: int, batch: TrainBatch) -> TrainBatch:
        if batch.role != "policy":
            return batch
        learner = batch.learner.model_copy(
            update={"learning_rate": batch.learner.learning_rate / 2}
        )
        return batch.model_copy(update={"learner": learner})

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        self.run.notes["steps"] = step
        return {"own/steps": float(step)}

    @property
    def ended(self) -> str:
        done = self.run.notes.get("steps", 0) >= self.options.limit
        return "its own limit is reached" if done else ""


METHOD = Method(name="own", options=Options, loop="tests.service.methods.own_method:Hooks")
