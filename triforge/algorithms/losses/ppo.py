"""`ppo`: the clipped objective a token (arXiv 1707.06347), with clip-higher (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729)."""

from __future__ import annotations

from array_api_compat import array_namespace
from pydantic import Field

from triforge.algorithms.losses import Array, TokenLoss, Tokens, limited, loss
from triforge.algorithms.registry import Options


class RatioOptions(Options):
    """Options of every loss with a ratio."""

    log_ratio_clamp: float = Field(10.0, gt=0, le=20)
    """Log-ratios are limited to +- this before the exponential."""


class ClipOptions(RatioOptions):
    """Options of a loss that clips the ratio."""

    clip_low: float = Field(0.2, gt=0, le=1)
    """The ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0, le=100)
    """The ratio is clipped at 1 + clip_high."""

    def cut(self, ratio: Array) -> Array:
        """Return the clipped ratio."""
        return array_namespace(ratio).clip(ratio, 1.0 - self.clip_low, 1.0 + self.clip_high)

    def beyond(self, ratio: Array, advantages: Array) -> Array:
        """Where the clip stops the ratio on its way with the advantage."""
        rising = (ratio > 1.0 + self.clip_high) & (advantages > 0)
        return rising | ((ratio < 1.0 - self.clip_low) & (advantages < 0))


class PpoOptions(ClipOptions):
    """Options of the clipped losses."""

    dual_clip: float | None = Field(None, gt=1, le=1_000_000.0)
    """A token of negative advantage costs at most this times the advantage, however likely it has
    become."""


def clipped_objective(tokens: Tokens, log_ratio: Array, options: PpoOptions) -> TokenLoss:
    """`-min(u A, clip(u) A)`, of negative advantage at most `-dual_clip A`."""
    xp = array_namespace(tokens.logprobs, log_ratio, tokens.advantages)
    advantages, ratio = tokens.advantages, xp.exp(log_ratio)
    values = -xp.minimum(ratio * advantages, options.cut(ratio) * advantages)
    if options.dual_clip is not None:
        most = -options.dual_clip * advantages
        values = xp.where(advantages < 0, xp.minimum(values, most), values)
    return TokenLoss(values, log_ratio, options.beyond(ratio, advantages))


@loss("ppo", PpoOptions)
def ppo(tokens: Tokens, options: PpoOptions) -> TokenLoss:
    """Return the PPO loss: each token has its own ratio."""
    log_ratio = limited(tokens.logprobs - tokens.prox, options.log_ratio_clamp)
    return clipped_objective(tokens, log_ratio, options)
