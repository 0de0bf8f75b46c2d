"""The weight of the KL term of a run that holds its distance from the anchor near a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from services.trainer.train_settings import TrainSettings
from triforge.algorithms.schedules import adaptive_beta


@dataclass(slots=True)
class Steering:
    """What the steps so far have made of the weight; it belongs to the checkpoint.

    Attributes:
        beta: the weight for the next step; None as long as no step has moved it.
    """

    beta: float | None = None

    def settings(self, given: TrainSettings) -> TrainSettings:
        """The settings of a step, with the weight that holds in it."""
        if given.algorithm.kl_target is None or self.beta is None:
            return given
        return replace(given, algorithm=given.algorithm.changed(kl_beta=self.beta))

    def moved(self, settings: TrainSettings, measured: Mapping[str, float]) -> dict[str, float]:
        """Learn from a step; returns the weight that held in it, as a measure (`kl_beta`).

        A step that measured no distance, or none that is a number, moves nothing.

        Args:
            settings: of the step, as `settings` gave them.
            measured: in the step; reads `kl_k3`, the mean over its tokens, each before its update.
        """
        if settings.algorithm.kl_target is None:
            return {}
        kl = measured.get("kl_k3", math.nan)
        if math.isfinite(kl):
            self.beta = adaptive_beta(
                settings.algorithm.kl_beta,
                kl,
                target=settings.algorithm.kl_target,
                gain=settings.algorithm.kl_gain,
            )
        return {"kl_beta": settings.algorithm.kl_beta}
