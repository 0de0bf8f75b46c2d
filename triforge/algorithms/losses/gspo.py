"""`gspo`: one ratio a response, the geometric mean over its tokens (arXiv 2507.18071)."""

from __future__ import annotations

from triforge.algorithms.losses import TokenLoss, Tokens, limited, loss
from triforge.algorithms.losses.ppo import PpoOptions, clipped_objective


@loss("gspo", PpoOptions, by_response=True)
def gspo(tokens: Tokens, options: PpoOptions) -> TokenLoss:
    """Return the GSPO loss: the gradient of the ratio goes to all tokens of the response."""
    log_ratio = limited(tokens.pooled(tokens.logprobs - tokens.prox), options.log_ratio_clamp)
    return clipped_objective(tokens, log_ratio, options)
