"""`reinforce`: the plain policy gradient, without a ratio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from triforge.algorithms.core import CoreOptions
from triforge.algorithms.losses import TokenLoss, Tokens, limited, loss
from triforge.algorithms.registry import Only, Options


class ReinforceOptions(Options):
    """Options of `reinforce`."""

    log_ratio_clamp: Annotated[
        float, Only(lambda a: a.kl_weighted, "another loss or kl_weighted = true: it has no ratio")
    ] = Field(10.0, gt=0, le=20)
    """Log-ratios, which weigh the KL term only, are limited to +- this."""

    def conflicts(self, algorithm: CoreOptions) -> Iterator[tuple[bool, str]]:
        """Yield the conflict: samples of other weights need an off-policy correction."""
        yield (
            algorithm.off_policy in ("none", "bypass"),
            f"loss: given 'reinforce' with off_policy = '{algorithm.off_policy}', allowed 'auto', 'decoupled', 'tis' or "
            "'mis': it has no ratio of its own, so nothing would correct samples of other weights",
        )


@loss("reinforce", ReinforceOptions)
def reinforce(tokens: Tokens, options: ReinforceOptions) -> TokenLoss:
    """Return the loss `-A log p`."""
    log_ratio = limited(tokens.logprobs - tokens.prox, options.log_ratio_clamp)
    return TokenLoss(-tokens.advantages * tokens.logprobs, log_ratio)
