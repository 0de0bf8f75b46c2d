"""Similarity of images to goals in words as step scores, and their combination with the state.

    clipped     z = cos(image, negative) - cos(image, positive);  R = 1 - clip(z, 0, theta) / theta      released code
    weighted    R = alpha * cos(image, positive) - beta * cos(image, negative),  alpha + beta = 1         paper
    combined    desired = limit * R;  r = (1 - |x - desired| / limit) * factors;  a failed end is worth a score of its own

x is a number of the state, for instance a speed; without one r = R * factors. A factor is `max(1 - |number| / limit, 0)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from triforge.errors import InputError

Vector = npt.NDArray[np.float64]


def unit(vector: Sequence[float] | Vector) -> Vector:
    """Return an embedding scaled to length 1; zero stays zero. Raise InputError if a number is not finite."""
    array = np.asarray(vector, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise InputError(
            "embedding: given something else than a vector of finite numbers; check the encoder"
        )
    length = float(np.linalg.norm(array))
    return array / length if length else array


def goal(embeddings: Iterable[Vector]) -> Vector:
    """Return the mean direction of several texts."""
    return unit(np.mean([unit(one) for one in embeddings], axis=0))


def clipped(to_positive: float, to_negative: float, theta: float) -> float:
    """Return `1 - clip(z, 0, theta) / theta`, in [0, 1]."""
    return 1.0 - min(max(to_negative - to_positive, 0.0), theta) / theta


def weighted(to_positive: float, to_negative: float, alpha: float) -> float:
    """Return `alpha * cos+ - (1 - alpha) * cos-`."""
    return alpha * to_positive - (1.0 - alpha) * to_negative


def combined(
    reward: float,
    readings: Mapping[str, float],
    *,
    factors: Mapping[str, float],
    target: str = "",
    limit: float = 1.0,
) -> float:
    """Combine a reward, as the target of one reading, with factors of other readings; `factors` maps names to limits.

    Raises:
        InputError: there is no reading of that name.
    """
    missing = sorted({*factors, *([target] if target else [])} - set(readings))
    if missing:
        raise InputError(
            f"methods.vlm_rl: given {missing[0]!r}, expected one of {sorted(readings)}: the environment gives no other number"
        )
    shares = (max(1.0 - abs(readings[name]) / most, 0.0) for name, most in factors.items())
    if target:
        desired = limit * min(max(reward, 0.0), 1.0)
        reward = 1.0 - abs(readings[target] - desired) / limit
    return reward * math.prod(shares)
