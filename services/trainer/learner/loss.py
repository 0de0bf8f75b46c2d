"""The loss of an update's tokens from the parts of `triforge.algorithms`, and its measures.

sum_t w_t * (importance_t * policy loss_t + kl_beta * KL_t - entropy_bonus * H_t)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.loss_terms import KL_ESTIMATORS, ratio_metrics, weighted_sum
from triforge.algorithms.losses import Tokens


@dataclass(frozen=True, slots=True)
class Scored:
    """Flat float tensors [N] of a micro-batch's trained tokens."""

    new: Tensor  # log-probabilities under the weights being trained, with gradient
    old: Tensor  # behaviour log-probabilities
    prox: (
        Tensor  # what the ratio is anchored to: weights at the start of the step, or the behaviour
    )
    importance: Tensor | None  # factor of each token's loss, a constant; None is 1
    advantages: Tensor  # A of each token
    weights: Tensor  # how much each token counts in this update
    reference: Tensor | None  # log-probabilities under the KL anchor; None without a KL term
    entropy: Tensor  # of the full distribution at each token, nats
    responses: Tensor  # int64 [N], the number of each token's response

    def pooled(self, values: Tensor) -> Tensor:
        """Each token's value replaced by the mean over its response [N]; the gradient goes to all of them."""
        _, places, counts = torch.unique(self.responses, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(counts), dtype=values.dtype, device=values.device)
        means: Tensor = sums.index_add(0, places, values) / counts
        return means[places]

    def tokens(self, new: Tensor) -> Tokens:
        """Return the inputs of a policy loss for these log-probabilities."""
        return Tokens(
            logprobs=new, prox=self.prox, advantages=self.advantages, pooled=self.pooled, stop=Tensor.detach
        )  # fmt: skip


def policy_loss(scored: Scored, algorithm: Algorithm) -> Tensor:
    """Return the policy-gradient loss, a scalar with gradient.

    With `kl_weighted` the KL term is multiplied by the ratio: unbiased after theta has moved away from the weights at the
    start of the step (but not for tokens that older versions sampled).
    """
    found = algorithm.token_loss(scored.tokens(scored.new))
    losses: Tensor = found.values
    if scored.importance is not None:
        losses = losses * scored.importance
    return regularised(losses, found.log_ratio, scored, algorithm)


def regularised(
    losses: Tensor, log_ratio: Tensor | None, scored: Scored, algorithm: Algorithm
) -> Tensor:
    """Return the weighted sum of the token losses, with the KL term and the entropy bonus."""
    if scored.reference is not None and algorithm.kl_placement == "loss":
        estimate = KL_ESTIMATORS[algorithm.kl_estimator]
        divergence = estimate(scored.new, scored.reference, clamp=algorithm.kl_clamp)
        if algorithm.kl_weighted and log_ratio is not None:
            divergence = divergence * log_ratio.exp()
        losses = losses + algorithm.kl_beta * divergence
    if algorithm.entropy_bonus:
        losses = losses - algorithm.entropy_bonus * scored.entropy
    total: Tensor = weighted_sum(losses, scored.weights)
    return total


@dataclass(slots=True)
class Tally:
    """Sums over the trained tokens of a step; `metrics` turns them into means."""

    tokens: int = 0
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    ratio_max: float = 1.0
    compared: int = 0
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    off_policy: dict[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def add(self, scored: Scored, algorithm: Algorithm) -> None:
        """Count the tokens of an update."""
        n, new, sums = len(scored.new), scored.new.detach(), self.sums
        found = algorithm.token_loss(scored.tokens(new))
        ratios = ratio_metrics(found.log_ratio, found.clipped, scored.weights)
        self.tokens += n
        self.ratio_max = max(self.ratio_max, ratios.max_ratio)
        sums["entropy"] += float(scored.entropy.sum())
        sums["clip_share"] += n * ratios.clip_share
        sums["approx_kl"] += n * ratios.approx_kl
        sums["ratio_mean"] += n * ratios.mean_ratio
        for name, estimate in KL_ESTIMATORS.items():  # prox has sampled, so it stands first
            sums[f"moved_{name}"] += float(estimate(scored.prox, new, clamp=None).sum())
            if scored.reference is not None:
                sums[f"kl_{name}"] += float(estimate(new, scored.reference, clamp=None).sum())

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
        found = {
            "loss": mean(self.losses),
            "ratio_max": self.ratio_max,
            "grad_norm": mean(self.grad_norms),
            "grad_norm_max": max(self.grad_norms, default=0.0),
            "updates": float(len(self.grad_norms)),
            "skipped_updates": float(self.skipped),
            **{name: total / self.tokens for name, total in self.sums.items()},
            **self.off_policy,
        }
        if self.compared:
            found["logprob_mismatch"] = self.mismatch / self.compared
            found["logprob_mismatch_max"] = self.mismatch_max
        return found


def mean(values: list[float]) -> float:
    """0 of nothing."""
    return sum(values) / len(values) if values else 0.0
