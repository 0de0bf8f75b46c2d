"""`sapo`: a soft gate in place of the clip (arXiv 2511.20347)."""

from __future__ import annotations

from array_api_compat import array_namespace
from pydantic import Field

from triforge.algorithms.losses import TokenLoss, Tokens, limited, loss
from triforge.algorithms.losses.ppo import RatioOptions


class SapoOptions(RatioOptions):
    """Options of `sapo`."""

    sapo_temperature: float = Field(1.0, gt=0, le=100)
    """How fast the gate closes for tokens of positive advantage."""
    sapo_temperature_negative: float = Field(1.05, gt=0, le=100)
    """The same for the others."""


@loss("sapo", SapoOptions)
def sapo(tokens: Tokens, options: SapoOptions) -> TokenLoss:
    """`-4 / tau * sigmoid(tau (u - 1)) A`."""
    xp = array_namespace(tokens.logprobs, tokens.prox, tokens.advantages)
    log_ratio = limited(tokens.logprobs - tokens.prox, options.log_ratio_clamp)
    tau = xp.where(
        tokens.advantages > 0, options.sapo_temperature, options.sapo_temperature_negative
    )
    gate = 1.0 + xp.exp(-tau * (xp.exp(log_ratio) - 1.0))
    return TokenLoss(-4.0 / tau / gate * tokens.advantages, log_ratio)
