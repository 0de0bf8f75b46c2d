"""`gspo_token`: the ratio of `gspo`, but each token carries the gradient of its own log-probability alone (arXiv 2507.18071)."""

from __future__ import annotations

from triforge.algorithms.losses import TokenLoss, Tokens, limited, loss
from triforge.algorithms.losses.ppo import PpoOptions, clipped_objective


@loss("gspo_token", PpoOptions)
def gspo_token(tokens: Tokens, options: PpoOptions) -> TokenLoss:
    """Tokens of one response may have advantages of their own."""
    new, stop = tokens.logprobs, tokens.stop
    difference = stop(tokens.pooled(new - tokens.prox)) + new - stop(new)
    return clipped_objective(tokens, limited(difference, options.log_ratio_clamp), options)
