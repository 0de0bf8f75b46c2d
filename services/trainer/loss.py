"""The loss of one micro-batch, and what is measured beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.trainer.train_settings import TrainSettings
from triforge.algorithms.imitation import PairLoss
from triforge.algorithms.loss_terms import KL_ESTIMATORS, ratio_metrics, weighted_sum
from triforge.algorithms.losses import Tokens


@dataclass(frozen=True, slots=True)
class Scored:
    """Flat float tensors [N] of a micro-batch's trained tokens.

    Attributes:
        new: log-probabilities under the weights being trained, with gradient.
        old: behaviour log-probabilities.
        prox: those that the ratio is anchored to: under the weights at the start of the step, or the behaviour's own.
        importance: what the loss of each token is multiplied with, a constant; None is 1.
        advantages: A of each token.
        weights: how much each token counts in this update.
        reference: log-probabilities under the KL anchor; None when no KL term is wanted.
        entropy: of the full distribution at each token, nats.
        responses: int64 [N], the number of each token's response.
    """

    new: Tensor
    old: Tensor
    prox: Tensor
    importance: Tensor | None
    advantages: Tensor
    weights: Tensor
    reference: Tensor | None
    entropy: Tensor
    responses: Tensor

    def pooled(self, values: Tensor) -> Tensor:
        """Each token's value replaced by the mean over its response [N]; the gradient goes to all of them."""
        _, places, counts = torch.unique(self.responses, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(counts), dtype=values.dtype, device=values.device)
        means: Tensor = sums.index_add(0, places, values) / counts
        return means[places]

    def tokens(self, new: Tensor) -> Tokens:
        """What the loss reads, under these log-probabilities."""
        return Tokens(
            logprobs=new, old=self.prox, advantages=self.advantages, pooled=self.pooled, stop=Tensor.detach
        )  # fmt: skip


def loss_of(scored: Scored, settings: TrainSettings) -> Tensor:
    """The loss of some tokens by the batch's job, a scalar with gradient.

    `ce` is `sum_t w_t * -log p_t`, `distil` the same times how much the token is imitated (in the place of its
    advantage), both with the KL and entropy terms of `pg`. For `dpo_pair` the weights are the slopes of the pairs' loss,
    which make the gradient right and the value meaningless (`services.trainer.pairs`).
    """
    if settings.algorithm.job == "dpo_pair":
        coupled: Tensor = weighted_sum(scored.new, scored.weights)
        return coupled
    if settings.algorithm.job == "pg":
        return _policy_gradient(scored, settings)
    share = scored.advantages if settings.algorithm.job == "distil" else torch.ones_like(scored.new)
    return _regularised(-share * scored.new, None, scored, settings)


def _policy_gradient(scored: Scored, settings: TrainSettings) -> Tensor:
    """`sum_t w_t * (importance_t * policy loss_t + kl_beta * KL_t - entropy_bonus * H_t)`, a scalar with gradient.

    Sources: `triforge.algorithms.losses` and `triforge.algorithms.loss_terms`. With `kl_weighted` the KL term is
    multiplied with the ratio, which makes it unbiased where theta has left the weights of the step's start (and not where
    still others have sampled).
    """
    found = settings.algorithm.token_loss(scored.tokens(scored.new))
    losses: Tensor = found.values
    if scored.importance is not None:
        losses = losses * scored.importance
    return _regularised(losses, found.log_ratio, scored, settings)


def _regularised(
    losses: Tensor, ratios: Tensor | None, scored: Scored, settings: TrainSettings
) -> Tensor:
    """The weighted sum, with the KL term and the entropy bonus."""
    if scored.reference is not None and settings.algorithm.kl_placement == "loss":
        estimate = KL_ESTIMATORS[settings.algorithm.kl_estimator]
        divergence = estimate(scored.new, scored.reference, clamp=settings.algorithm.kl_clamp)
        if settings.algorithm.kl_weighted and ratios is not None:
            divergence = divergence * ratios.exp()
        losses = losses + settings.algorithm.kl_beta * divergence
    if settings.algorithm.entropy_bonus:
        losses = losses - settings.algorithm.entropy_bonus * scored.entropy
    total: Tensor = weighted_sum(losses, scored.weights)
    return total


@dataclass(slots=True)
class Tally:
    """Sums over the trained tokens of a step; `metrics` turns them into means."""

    tokens: int = 0
    anchored: int = 0
    entropy: float = 0.0
    clipped: float = 0.0
    approx_kl: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 1.0
    kl: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KL_ESTIMATORS, 0.0))
    moved: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KL_ESTIMATORS, 0.0))
    compared: int = 0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    off_policy: dict[str, float] = field(default_factory=dict)
    opsm_dropped: float = 0.0
    pairs: list[PairLoss] = field(default_factory=list)

    @torch.no_grad()
    def add(self, scored: Scored, settings: TrainSettings) -> None:
        """Count a micro-batch."""
        n = len(scored.new)
        new = scored.new.detach()
        found = settings.algorithm.token_loss(scored.tokens(new))
        ratios = ratio_metrics(found.log_ratio, found.clipped, scored.weights)
        self.tokens += n
        self.entropy += float(scored.entropy.sum())
        self.clipped += n * ratios.clip_share
        self.approx_kl += n * ratios.approx_kl
        self.ratio += n * ratios.mean_ratio
        self.ratio_max = max(self.ratio_max, ratios.max_ratio)
        for name, estimate in KL_ESTIMATORS.items():  # prox has sampled, so it stands first
            self.moved[name] += float(estimate(scored.prox, new, clamp=None).sum())
        if scored.reference is not None:
            self.anchored += n
            for name, estimate in KL_ESTIMATORS.items():
                self.kl[name] += float(estimate(new, scored.reference, clamp=None).sum())

    @torch.no_grad()
    def compare(self, scored: Scored, same: Tensor) -> None:
        """Compare the trainer's log-probabilities with the engine's, where the weights are the same (bool [N])."""
        difference = (scored.new.detach() - scored.old).abs()[same]
        if len(difference):
            self.compared += len(difference)
            self.mismatch += float(difference.sum())
            self.mismatch_max = max(self.mismatch_max, float(difference.max()))

    def metrics(self) -> dict[str, float]:
        """Means over the tokens; a KL that was not asked for and an engine that was not compared are left out."""
        n = max(1, self.tokens)
        found = {
            "loss": _mean(self.losses),
            "entropy": self.entropy / n,
            "clip_share": self.clipped / n,
            "approx_kl": self.approx_kl / n,
            "ratio_mean": self.ratio / n if self.tokens else 1.0,
            "ratio_max": self.ratio_max,
            **{f"moved_{name}": total / n for name, total in self.moved.items()},
            "grad_norm": _mean(self.grad_norms),
            "grad_norm_max": max(self.grad_norms, default=0.0),
            "updates": float(len(self.grad_norms)),
            "skipped_updates": float(self.skipped),
            **self.off_policy,
        }
        if self.opsm_dropped:
            found["opsm_dropped"] = self.opsm_dropped / n
        if self.pairs:
            found["pairs"] = float(sum(pair.pairs for pair in self.pairs))
            found["pairs_right"] = _mean([pair.right for pair in self.pairs])
        if self.anchored:
            found |= {f"kl_{name}": total / self.anchored for name, total in self.kl.items()}
        if self.compared:
            found["logprob_mismatch"] = self.mismatch / self.compared
            found["logprob_mismatch_max"] = self.mismatch_max
        return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
