"""One run of the experiment on auxiliary objectives, which also asks how well the policy knows the environment."""

from __future__ import annotations

from experiments.envrl import WORDING, EnvrlSettings
from experiments.loop import Run
from experiments.loop import play as play_run
from experiments.record import Models, Result, Tell, silent
from experiments.settings import Arm, Settings
from methods.envrl.learner import NAME, Auxiliary
from methods.envrl.options import EnvRLOptions
from methods.envrl.rows import auxiliary_rows
from services.trainer.learner.parallel.ranks import Ranks
from triforge.rendering import Renderer
from triforge.types import JudgedGroup, TrainRow

_GUESSES = 256


class EnvrlRun(Run):
    """A run that also measures both objectives on the held-out episodes that the first policy played."""

    _probe: list[TrainRow] | None = None

    async def _evaluate(self, step: int) -> dict[str, float]:
        success = await super()._evaluate(step)
        if self._probe is None:
            self._probe = self._items()
        found = self._measure(self._probe)
        known = {
            name: found[f"aux/{name}"]
            for name in ("sp/nll", "id/nll", "id/exact")
            if f"aux/{name}" in found
        }
        return success | known

    def _items(self) -> list[TrainRow]:
        """Return the same transitions in every evaluation and for all arms of a seed, with their true targets."""
        assert isinstance(self._settings, EnvrlSettings)
        options = EnvRLOptions.model_validate(
            WORDING | {"measure": True, "max_samples_per_update": self._settings.probe}
        )
        groups = [
            JudgedGroup(
                played=group.played.model_copy(
                    update={"group": group.played.group.model_copy(update={"purpose": "train"})}
                ),
                votes=group.votes,
            )
            for group in self._sampled
        ]
        renderer = Renderer.from_folder(self._config.models.policy.path)
        limit = self._config.trainer.policy.max_tokens
        return auxiliary_rows(
            groups, options, renderer, trained=0, max_tokens=limit, seed=self._seed
        ).rows

    def _measure(self, rows: list[TrainRow]) -> dict[str, float]:
        learner = self._learners["policy"]
        terms = Auxiliary(learner.model, learner.initial, Ranks(learner.model.device))
        batch = self._batch("policy", 1, rows, self._config.trainer.policy)
        batch = batch.model_copy(
            update={"extra": {NAME: {"weights": {}}}}
        )  # only terms without a weight are measured
        terms.take(rows, batch)
        terms.measure(batch, lambda: None, guesses=_GUESSES)
        return terms.metrics()


def play(
    name: str, arm: Arm, seed: int, settings: Settings, models: Models, *, tell: Tell = silent
) -> Result:
    """Play one run in this process."""
    return play_run(name, arm, seed, settings, models, tell=tell, make=EnvrlRun)
