"""`cispo`: the weight of a token is clipped and not its gradient (arXiv 2506.13585)."""

from __future__ import annotations

from array_api_compat import array_namespace

from triforge.algorithms.losses import TokenLoss, Tokens, limited, loss
from triforge.algorithms.losses.ppo import ClipOptions


@loss("cispo", ClipOptions)
def cispo(tokens: Tokens, options: ClipOptions) -> TokenLoss:
    """`-stop(clip(u)) A log p`."""
    log_ratio = limited(tokens.logprobs - tokens.prox, options.log_ratio_clamp)
    ratio = array_namespace(tokens.logprobs, tokens.prox).exp(log_ratio)
    values = -tokens.stop(options.cut(ratio)) * tokens.advantages * tokens.logprobs
    return TokenLoss(values, log_ratio, options.beyond(ratio, tokens.advantages))
