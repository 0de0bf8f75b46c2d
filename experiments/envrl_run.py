"""One run of the experiment on auxiliary objectives, which also measures how well the policy predicts the environment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from experiments.envrl import WORDING, EnvrlSettings
from experiments.loop import Run, heldout
from methods.envrl.learner import NAME, Auxiliary
from methods.envrl.options import EnvRLOptions
from methods.envrl.rows import auxiliary_rows
from services.trainer.learner.learner import Learner
from services.trainer.loop.hooks import Measures
from triforge.rendering import Renderer
from triforge.types import JudgedGroup, TrainRow

_GUESSES = 256


class EnvrlRun(Run):
    """A run that also measures both objectives on the held-out episodes that the first policy played."""

    _probe: list[TrainRow] | None = None

    def evaluated(self, groups: Sequence[JudgedGroup]) -> Measures:
        """Keep the transitions of the first evaluation."""
        if self._probe is None:
            self._probe = self._items([group for _, group in heldout(groups, "sampled")])
        return super().evaluated(groups)

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Add the objectives to an evaluation."""
        if self._evaluation and self._probe:
            learner = Learner.fresh(await self._weights("policy"))
            self._evaluation |= await asyncio.to_thread(self._objectives, learner, self._probe)
        return await super().after_step(step, measures)

    def _items(self, groups: Sequence[JudgedGroup]) -> list[TrainRow]:
        """Return the same transitions for all arms of a seed, with their true targets."""
        assert isinstance(self._settings, EnvrlSettings)
        options = EnvRLOptions.model_validate(
            WORDING | {"measure": True, "max_samples_per_update": self._settings.probe}
        )
        played = [group.played for group in groups]
        asked = [one.group.model_copy(update={"purpose": "train"}) for one in played]
        training = [
            group.model_copy(update={"played": one.model_copy(update={"group": task})})
            for group, one, task in zip(groups, played, asked, strict=True)
        ]
        renderer = Renderer.from_folder(self._config.models.policy.path)
        limit = self._config.trainer.policy.max_tokens
        return auxiliary_rows(
            training, options, renderer, trained=0, max_tokens=limit, seed=self._seed
        ).rows

    def _objectives(self, learner: Learner, rows: list[TrainRow]) -> dict[str, float]:
        terms = Auxiliary(learner.model, learner.initial, learner.ranks)
        batch = self._batch("policy", 1, rows, self._config.trainer.policy)
        # only terms without a weight are measured
        batch = batch.model_copy(update={"extra": {NAME: {"weights": {}}}})
        terms.take(rows, batch)
        terms.measure(batch, lambda: None, guesses=_GUESSES)
        measures = terms.metrics()
        names = ("sp/nll", "id/nll", "id/exact")
        return {name: measures[f"aux/{name}"] for name in names if f"aux/{name}" in measures}
