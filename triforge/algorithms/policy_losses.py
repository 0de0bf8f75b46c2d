"""The policy losses a token, against the array API, and the ratios that they share.

All arrays of one call have the same shape. What belongs to a whole response is handed in: `pooled` replaces each token's
value by the mean over its response. What must not carry a gradient goes through `stop`, which on arrays without gradients
is the identity.

Sources: PPO (arXiv 1707.06347), its dual clip (arXiv 1912.09729), clip-higher of DAPO (arXiv 2503.14476), GSPO and its
token form (arXiv 2507.18071), CISPO (arXiv 2506.13585), SAPO (arXiv 2511.20347).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from array_api_compat import array_namespace

Array = Any
Loss = Literal["ppo", "gspo", "gspo_token", "cispo", "reinforce", "sapo"]
Job = Literal["pg", "ce", "distil", "dpo_pair", "critic"]
Pooled = Callable[[Array], Array]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossRule:
    """Which loss, and its constants: options of `triforge.algorithms.presets.Preset`, and the published ones of SAPO."""

    loss: Loss = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    log_ratio_clamp: float = 10.0
    sapo_temperature: float = 1.0
    sapo_temperature_negative: float = 1.05


def same(values: Array) -> Array:
    """The identity: arrays without gradients have nothing to stop."""
    return values


def log_ratios(
    logprobs: Array,
    old: Array,
    rule: LossRule,
    *,
    pooled: Pooled,
    stop: Callable[[Array], Array] = same,
) -> Array:
    """The logarithm of the ratio that a loss is a function of, limited to +-`log_ratio_clamp`.

    A token's own, `logprobs - old`; with GSPO the mean of that over its response. The token form of GSPO has the same
    value, but each token carries the gradient of its own log-probability alone.

    Args:
        logprobs: under the weights being trained (carry the gradient).
        old: under the weights the ratio is anchored to.
        rule: which loss.
        pooled: mean over the response, a token.
        stop: lets no gradient through.
    """
    xp = array_namespace(logprobs, old)
    difference = logprobs - old
    if rule.loss == "gspo":
        difference = pooled(difference)
    elif rule.loss == "gspo_token":
        difference = stop(pooled(difference)) + logprobs - stop(logprobs)
    return xp.clip(difference, -rule.log_ratio_clamp, rule.log_ratio_clamp)


def policy_loss(
    logprobs: Array,
    log_ratio: Array,
    advantages: Array,
    rule: LossRule,
    *,
    stop: Callable[[Array], Array] = same,
) -> Array:
    """The loss (to be minimised) of each token, by the formulas of `docs/algorithms.md`, "Losses".

    Args:
        logprobs: under the weights being trained.
        log_ratio: what `log_ratios` says of them.
        advantages: A of each token.
        rule: which loss.
        stop: lets no gradient through.
    """
    xp = array_namespace(logprobs, log_ratio, advantages)
    if rule.loss == "reinforce":
        return -advantages * logprobs
    ratio = xp.exp(log_ratio)
    if rule.loss == "sapo":
        heat = xp.where(advantages > 0, rule.sapo_temperature, rule.sapo_temperature_negative)
        return -4.0 / heat / (1.0 + xp.exp(-heat * (ratio - 1.0))) * advantages
    cut = xp.clip(ratio, 1.0 - rule.clip_low, 1.0 + rule.clip_high)
    if rule.loss == "cispo":
        return -stop(cut) * advantages * logprobs
    losses = -xp.minimum(ratio * advantages, cut * advantages)
    if rule.dual_clip is None:
        return losses
    return xp.where(advantages < 0, xp.minimum(losses, -rule.dual_clip * advantages), losses)


def value_loss(values: Array, returns: Array, old_values: Array, *, clip: float | None) -> Array:
    """`max((V - R)^2, (clip(V, V_old +- clip) - R)^2) / 2` a token; without a clip the square alone.

    Args:
        values: of the critic being trained (carry the gradient).
        returns: what they are to be.
        old_values: of the critic at the start of the step.
        clip: how far a value may move in a step before the loss stops rewarding it.
    """
    plain = (values - returns) ** 2
    if clip is None:
        return 0.5 * plain
    xp = array_namespace(values, returns, old_values)
    near = old_values + xp.clip(values - old_values, -clip, clip)
    return 0.5 * xp.maximum(plain, (near - returns) ** 2)
