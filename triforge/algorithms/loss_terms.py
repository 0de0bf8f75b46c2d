"""Terms that losses share: KL of a token, sums over tokens, distance from the old weights, the critic's loss.

Written against the array API, as the losses are. Sources: the estimators k1, k2, k3 of J. Schulman, "Approximating KL
divergence" (2020); the limits on log-ratios are those of RLAnything's released code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

Array = Any

# exp(+-20) is finite in every float type a learner uses; a larger difference says nothing more.
SAFE_LOG = 20.0


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


def _limited(values: Array, clamp: float | None) -> Array:
    return values if clamp is None else array_namespace(values).clip(values, -clamp, clamp)


def weighted_sum(values: Array, weights: Array) -> Array:
    """Sum of `values * weights` over all tokens; tokens of weight 0 (context, padding) add nothing, whatever they hold."""
    xp = array_namespace(values, weights)
    return xp.sum(xp.where(weights != 0, values, xp.zeros_like(values)) * weights)


@dataclass(frozen=True, slots=True)
class RatioMetrics:
    """How far the new weights have moved, over the tokens that count.

    Attributes:
        clip_share: share of tokens whose objective is cut off by the clip (their gradient is 0).
        approx_kl: mean of `ratio - 1 - log(ratio)`, an estimate of KL(old, new) in nats.
        mean_ratio: mean of new over old probability.
    """

    clip_share: float = 0.0
    approx_kl: float = 0.0
    mean_ratio: float = 1.0
    max_ratio: float = 1.0


def ratio_metrics(log_ratio: Array, clipped: Array | None, weights: Array) -> RatioMetrics:
    """Measure the step just taken, over the tokens whose weight is above 0; without any, nothing has moved.

    `log_ratio` and `clipped` are those of `losses.TokenLoss`.
    """
    xp = array_namespace(log_ratio, weights)
    counts = xp.astype(weights > 0, log_ratio.dtype)
    total = float(xp.sum(counts))
    if total == 0.0:
        return RatioMetrics()
    difference = xp.where(counts > 0, log_ratio, xp.zeros_like(log_ratio))
    ratio = xp.exp(difference)
    cut = 0.0 if clipped is None else float(xp.sum(xp.astype(clipped, counts.dtype) * counts))
    counted = xp.where(counts > 0, ratio, xp.zeros_like(ratio))
    return RatioMetrics(
        clip_share=cut / total,
        approx_kl=float(xp.sum((ratio - 1.0 - difference) * counts)) / total,
        mean_ratio=float(xp.sum(counted)) / total,
        max_ratio=float(xp.max(counted)),
    )


def value_loss(values: Array, returns: Array, old_values: Array, *, clip: float | None) -> Array:
    """`max((V - R)^2, (clip(V, V_old +- clip) - R)^2) / 2` a token; without a clip the square alone.

    `old_values` are the critic's at the start of the step; `clip` is how far one may move before the loss stops rewarding it.
    """
    plain = (values - returns) ** 2
    if clip is None:
        return 0.5 * plain
    xp = array_namespace(values, returns, old_values)
    near = old_values + xp.clip(values - old_values, -clip, clip)
    return 0.5 * xp.maximum(plain, (near - returns) ** 2)
