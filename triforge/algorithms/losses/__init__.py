"""Policy losses, one value a token. One file each; see docs/extend.md.

Written against the array API: the same code runs on NumPy, on torch and on strict arrays. All arrays of one call have the
same shape. What belongs to a whole response goes through `pooled`, what must not carry a gradient through `stop`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from triforge.algorithms.registry import Options, Registry

Array = Any
Map = Callable[[Array], Array]


def same(values: Array) -> Array:
    """Return the values: the stop-gradient of arrays without gradients."""
    return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Inputs of a loss for some tokens.

    Attributes:
        logprobs: under the weights being trained (carry the gradient).
        prox: under the weights the ratio is anchored to (what sampled them, or the start of the step).
        pooled: replaces each token's value by the mean over its response.
        stop: lets no gradient through; the identity on arrays without gradients.
    """

    logprobs: Array
    prox: Array
    advantages: Array
    pooled: Map = same
    stop: Map = same


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Result of a loss for each token.

    Attributes:
        log_ratio: the logarithm of the ratio that it is a function of.
        clipped: which tokens' objective is cut off, so that their gradient is 0; None where nothing is.
    """

    values: Array
    log_ratio: Array
    clipped: Array | None = None


Function = Callable[[Tokens, Any], TokenLoss]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """One loss: its name, its options, its function; `by_response` says that a response has one ratio and one advantage."""

    name: str
    options: type[Options]
    function: Function
    by_response: bool = False


LOSSES = Registry("loss", Loss, __name__)

loss = LOSSES.register


def limited(difference: Array, limit: float) -> Array:
    """Log-ratios limited to +- `limit`."""
    return array_namespace(difference).clip(difference, -limit, limit)
