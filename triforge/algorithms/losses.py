"""What every loss shares: the KL a token, the sum over tokens, and how far the weights have moved.

Written against the array API: the same code runs on NumPy, on torch and on strict arrays. All arrays of one call have the
same shape, usually `[rows, tokens]`. The losses themselves (`policy_losses`) and the KL return one value a token;
`weighted_sum` turns them into a number with the weights of `aggregation.token_weights`, so that neither micro-batches nor
ranks change the gradient.

Sources: the estimators k1, k2, k3 of J. Schulman, "Approximating KL divergence" (2020); the limits on log-ratios are those
of RLAnything's released code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

Array = Any

# exp(+-20) is finite in every float type a learner uses; a larger difference says nothing more.
SAFE_LOG = 20.0
_STEERED = 0.2  # the error that a step counts at most


@dataclass(frozen=True, slots=True)
class RatioMetrics:
    """How far the new weights have moved, over the tokens that count.

    Attributes:
        clip_share: share of tokens whose objective is cut off by the clip (their gradient is 0).
        approx_kl: mean of `ratio - 1 - log(ratio)`, an estimate of KL(old, new) in nats.
        mean_ratio: mean of new over old probability.
        max_ratio: largest of them.
    """

    clip_share: float
    approx_kl: float
    mean_ratio: float
    max_ratio: float


def kl_k1(logprobs: Array, ref: Array, *, clamp: float | None = 10.0) -> Array:
    """`d = logprobs - ref` a token, limited to +-clamp. Unbiased as a value; as a loss its expected gradient is 0."""
    return _limited(logprobs - ref, clamp)


def kl_k2(logprobs: Array, ref: Array, *, clamp: float | None = 10.0) -> Array:
    """`d * d / 2` a token, limited to clamp. As a loss it has the right gradient on samples of the trained policy."""
    difference = logprobs - ref
    return _limited(0.5 * difference * difference, clamp)


def kl_k3(logprobs: Array, ref: Array, *, clamp: float | None = 10.0) -> Array:
    """`exp(-d) - 1 + d` a token, never negative, limited to clamp. The published choice.

    A token at its limit has no gradient: it no longer pulls the policy back. With `clamp` None only the exponential is
    kept finite.
    """
    xp = array_namespace(logprobs, ref)
    difference = xp.clip(logprobs - ref, -SAFE_LOG, SAFE_LOG)
    return _limited(xp.exp(-difference) - 1.0 + difference, clamp)


KL_ESTIMATORS: dict[str, Callable[..., Array]] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def steered_beta(beta: float, kl: float, *, target: float, gain: float) -> float:
    """The weight of the KL term after a step that went `kl` nats a token from the anchor.

    `beta * (1 + gain * clip(kl / target - 1, -0.2, 0.2))`: larger where the policy went further than wanted, smaller where
    it stayed nearer. Source: Ziegler et al., arXiv 1909.08593, section 2.2.
    """
    error = min(max(kl / target - 1.0, -_STEERED), _STEERED)
    return beta * (1.0 + gain * error)


def weighted_sum(values: Array, weights: Array) -> Array:
    """Sum of `values * weights` over all tokens; tokens of weight 0 (context, padding) add nothing, whatever they hold."""
    xp = array_namespace(values, weights)
    zero = xp.zeros_like(values)
    return xp.sum(xp.where(weights != 0, values, zero) * weights)


def ratio_metrics(
    logprobs: Array,
    old_logprobs: Array,
    advantages: Array,
    weights: Array,
    *,
    clip_low: float,
    clip_high: float,
    log_ratio_clamp: float = 10.0,
) -> RatioMetrics:
    """Measure the step just taken, over the tokens whose weight is above 0.

    Without any counting token the shares are 0 and the ratios 1.

    Args:
        logprobs: log-probabilities under the weights being trained.
        old_logprobs: under the weights the ratio is anchored to, same shape.
        advantages: A of each token, same shape.
        weights: how much each token counts in the loss, same shape.
        clip_low: how far the ratio may fall below 1 before it is cut off.
        clip_high: how far it may rise above 1.
        log_ratio_clamp: limit of the log-ratio before the exponential.
    """
    xp = array_namespace(logprobs, old_logprobs, advantages, weights)
    counts = xp.astype(weights > 0, logprobs.dtype)
    total = float(xp.sum(counts))
    if total == 0.0:
        return RatioMetrics(clip_share=0.0, approx_kl=0.0, mean_ratio=1.0, max_ratio=1.0)
    difference = xp.clip(logprobs - old_logprobs, -log_ratio_clamp, log_ratio_clamp)
    difference = xp.where(counts > 0, difference, xp.zeros_like(difference))
    ratio = xp.exp(difference)
    rising = (ratio > 1.0 + clip_high) & (advantages > 0)
    falling = (ratio < 1.0 - clip_low) & (advantages < 0)
    cut = xp.astype(rising | falling, logprobs.dtype)
    counted = xp.where(counts > 0, ratio, xp.zeros_like(ratio))
    return RatioMetrics(
        clip_share=float(xp.sum(cut * counts)) / total,
        approx_kl=float(xp.sum((ratio - 1.0 - difference) * counts)) / total,
        mean_ratio=float(xp.sum(counted)) / total,
        max_ratio=float(xp.max(counted)),
    )


def _limited(values: Array, clamp: float | None) -> Array:
    if clamp is None:
        return values
    return array_namespace(values).clip(values, -clamp, clamp)
