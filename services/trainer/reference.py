"""What models say of a step's rows without being trained on them: the weights at the start of the step, and the KL anchor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from services.trainer.correction import weigh
from services.trainer.distributed import Ranks
from services.trainer.lora import AdaptedModel, Bare
from services.trainer.model import ScoringModel
from services.trainer.step_state import StepState
from services.trainer.token_batches import Floats, TokenBatch
from services.trainer.train_settings import TrainSettings


class LookBack:
    """Forward passes without gradient.

    Args:
        model: in training.
        initial: the run's initial model folder.
        ranks: the processes that share the passes.

    Attributes:
        anchor: the model that the run began with, once it was asked for.
    """

    def __init__(self, model: ScoringModel, initial: Path, ranks: Ranks) -> None:
        self._model, self._initial, self._ranks = model, initial, ranks
        self.anchor: ScoringModel | Bare | None = None

    def find_anchor(self, settings: TrainSettings, *, untouched: bool) -> None:
        """Have the anchor at hand.

        Args:
            settings: of the step.
            untouched: the model was never updated, so it is the one that the run began with.
        """
        if self.anchor is None:
            self.anchor = self._first_model(untouched=untouched)
        if isinstance(
            self.anchor, ScoringModel
        ):  # in the same numbers, so that equal weights are equal
            self.anchor.compute(precision=settings.learner.precision)

    def _first_model(self, *, untouched: bool) -> ScoringModel | Bare:
        """The model that the run began with."""
        if isinstance(self._model, AdaptedModel):
            return Bare(self._model)
        if untouched and not self._ranks.shards:
            return self._model.frozen_copy()
        model = ScoringModel.load(
            self._initial, self._model.device, images=self._model.images
        ).freeze()
        self._ranks.shard(model.scorer)
        return model

    def look_back(self, step: StepState, plans: list[list[int]]) -> None:
        """What the weights at the start of the step say of all rows, if anybody wants to know."""
        settings = step.settings
        charged = settings.algorithm.kl_placement == "reward"
        if charged and settings.algorithm.kl_reference == "initial":
            assert self.anchor is not None  # the placement asks for one
            step.reference = self.look(step, plans, self.anchor)
        anchored = step.reference is not None and settings.algorithm.kl_reference == "step_start"
        if anchored or settings.correction.needs_prox:
            self._recompute(step, plans, anchored=anchored)
        if charged and not settings.algorithm.needs_critic:
            step.charge()

    def _recompute(self, step: StepState, plans: list[list[int]], *, anchored: bool) -> None:
        """Score all rows by the weights at the start of the step, for the anchor or the off-policy correction."""
        settings = step.settings
        found = self.look(step, plans, self._model)
        if anchored:
            step.reference = found
        if settings.correction.needs_prox:
            step.prox = found
            step.importance, measures = weigh(
                found, step.data.old, step.data.responses, settings.correction
            )
            step.tally.off_policy = {} if measures is None else measures.as_metrics()

    def look(self, step: StepState, plans: list[list[int]], model: ScoringModel | Bare) -> Floats:
        """Log-probabilities of some rows, float32 [N] of the step; the others are 0."""
        found = np.zeros(step.data.sequences.total, dtype=np.float32)
        with step.effort.phase("look_back"):
            for rows, counts, _ in self._ranks.share(plans, step.should_stop):
                batch = self._model.batch(step.data.sequences, rows)
                scores = self.glance(step, batch, model)
                if counts:
                    found[batch.cells] = scores
            self._ranks.merge(found)
        return found

    @torch.no_grad()
    def glance(self, step: StepState, batch: TokenBatch, model: ScoringModel | Bare) -> Floats:
        """Log-probabilities of a forward pass's tokens, without gradient."""
        logprobs, _ = model.score(batch, step.settings.temperature)
        step.effort.count(batch, trained=False)
        found: Floats = logprobs.cpu().numpy()
        return found
