"""How much a token counts: a loss a token times these weights, summed up, is the loss of the batch.

The weights are given before the batch is cut up, so neither micro-batches nor ranks change the gradient.

Sources: GRPO (arXiv 2402.03300) for means of means, DAPO (arXiv 2503.14476) for the mean over tokens, Dr. GRPO (arXiv
2503.20783) for the constant length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from triforge.algorithms.core import Aggregation


def token_weights(
    counts: Sequence[int],
    aggregation: Aggregation,
    *,
    units: Sequence[Hashable] = (),
    length: int = 1,
) -> list[float]:
    """Return the weight of one token of each step response; except for `step_sum`, the weights of all tokens sum to 1.

    A learner that takes several updates gives each the scale of the whole batch: it divides by the update's share of the
    weights, and with `step_sum` by its share of the responses, as long responses count more there.

    With n, the `counts`: trained tokens of each of N responses (responses without trained tokens have weight 0 and do not
    count in N):
    `token_mean` is `1 / sum(n)`, `step_mean` is `1 / (N * n)`, `step_sum` is `1 / (N * length)`. `trajectory_mean` and
    `task_mean` are `1 / (U * tokens of the response's unit)`, `units` being the trajectory or task of each response, U many.
    """
    if aggregation == "step_sum":
        responses = sum(count > 0 for count in counts)
        return [1.0 / (responses * length) if count else 0.0 for count in counts]
    if aggregation == "token_mean":
        units = ["all"] * len(counts)
    elif aggregation == "step_mean":
        units = range(len(counts))
    tokens: Counter[Hashable] = Counter()
    for unit, count in zip(units, counts, strict=True):
        tokens[unit] += count
    present = sum(total > 0 for total in tokens.values())
    return [
        1.0 / (present * tokens[unit]) if count else 0.0
        for unit, count in zip(units, counts, strict=True)
    ]
