"""The off-policy correction on a step's flat arrays: responses are laid side by side, weighed and taken apart again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triforge.algorithms.off_policy import (
    Correction,
    OffPolicyMetrics,
    importance_weights,
    opsm_keeps,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Responses:
    """Flat arrays [N] of tokens as rectangles [responses, longest].

    Args:
        numbers: int64 [N], the number of each token's response; equal numbers stand together.
    """

    def __init__(self, numbers: Ints) -> None:
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        counts = np.diff(begins, append=len(numbers))
        self._rows = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        self._columns = np.arange(len(numbers)) - starts[self._rows]
        self._shape = (len(counts), int(counts.max(initial=0)))

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Which cells are tokens."""
        found = np.zeros(self._shape, dtype=np.bool_)
        found[self._rows, self._columns] = True
        return found

    def spread(self, flat: Floats) -> npt.NDArray[np.float64]:
        """Flat values as a rectangle, in doubles; other cells are 0."""
        found = np.zeros(self._shape)
        found[self._rows, self._columns] = flat
        return found

    def flatten(self, cells: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """The tokens of a rectangle as flat float32."""
        flat: npt.NDArray[np.float32] = cells[self._rows, self._columns].astype(np.float32)
        return flat


def weigh(
    prox: Floats, behave: Floats, responses: Ints, correction: Correction
) -> tuple[Floats, OffPolicyMetrics | None]:
    """The importance weight of every token [N], float32, and the measures; none of a step without tokens."""
    if not len(prox):
        return prox, None
    table = Responses(responses)
    weights, measures = importance_weights(
        table.spread(prox), table.spread(behave), table.mask, correction
    )
    return table.flatten(weights), measures


def opsm_mask(
    new: Floats, behave: Floats, advantages: Floats, responses: Ints, *, delta: float
) -> Floats:
    """1 for every token [N] that off-policy sequence masking keeps, 0 for the others."""
    table = Responses(responses)
    kept = opsm_keeps(
        table.spread(new), table.spread(behave), table.spread(advantages), table.mask, delta=delta
    )
    return table.flatten(kept)
