"""Reported numbers: what is one, its bound at every door, and arithmetic that stays finite below the bound."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from tests.rollouts import step_credit
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.presets import preset_names
from triforge.errors import ConfigError
from triforge.types import LARGEST, Reported, SessionReward, StepVotes, number, reported

GOOD: list[tuple[object, float]] = [
    (0, 0.0),
    (-0.0, 0.0),
    (True, 1.0),
    (LARGEST, LARGEST),
    (-LARGEST, -LARGEST),
    (np.float32(0.5), 0.5),
    (np.array(3), 3.0),
    (Decimal("0.25"), 0.25),
    (Fraction(1, 4), 0.25),
]
NAMED: list[object] = [1e308, -1e308, 1e154, 1e13, math.inf, math.nan, 10**400, 10**5000]
NONE: list[object] = ["1", "", b"1", bytearray(b"1"), {"score": 1}, [1.0], (1.0,), {1.0}, object(), np.ones(2), Decimal("sNaN"), 1j, np.str_("1"), np.bytes_(b"1"), np.array("1"), np.complex128(1 + 1j)]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), GOOD)
def test_what_converts_itself_to_a_number_within_the_bound_is_one(
    value: object, expected: float
) -> None:
    assert number(value) == expected


@pytest.mark.parametrize("value", [*NAMED, *NONE, None], ids=lambda value: type(value).__name__)
def test_anything_else_is_refused_with_the_bound_and_what_to_do(value: object) -> None:
    with pytest.raises(ValueError, match=r"from -1e\+12 to 1e\+12: divide larger ones") as caught:
        reported(value, "the function returned")
    assert caught.value.args[0].startswith("the function returned ")
    assert len(caught.value.args[0]) < 300


@pytest.mark.parametrize("value", [*NAMED[:-1], "1", {"a": 1}, [1]], ids=str)
@pytest.mark.parametrize("where", ["score", "steps", "metrics"])
def test_every_number_of_a_session_has_the_bound(where: str, value: object) -> None:
    fields = {"score": {"score": value}}.get(where, {"success": True, where: {"1": value}})
    with pytest.raises(ValidationError) as caught:
        SessionReward.model_validate(fields)
    (error,) = caught.value.errors()
    assert error["loc"] == (where,) if where == "score" else (where, "1")
    assert "from -1e+12 to 1e+12" in error["msg"]


def test_the_score_of_a_judge_of_ones_own_has_the_bound() -> None:
    with pytest.raises(ValidationError, match=r"from -1e\+12"):
        StepVotes(step=0, prompt_ids=(), votes=(), score=1e154)


def test_the_schema_of_the_api_has_the_bound() -> None:
    schema = TypeAdapter(Reported).json_schema()
    assert schema == {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}


SCORES = {
    "all largest": [LARGEST] * 4,
    "both ends": [LARGEST, -LARGEST, LARGEST, -LARGEST],
    "one": [LARGEST, 0.0, 0.0, 0.0],
    "nearly equal": [LARGEST, LARGEST - 1.0, LARGEST, LARGEST],
    "tiny": [5e-324, 0.0, -5e-324, 1e-300],
    "far apart": [LARGEST, 1e-300, -1.0, 0.5],
}
STEPS = 50


@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("normalise", ["std", "mean", "others", "raw"])
def test_advantages_of_the_largest_numbers_are_finite_in_float32(
    normalise: str, scores: list[float]
) -> None:
    for preset in preset_names():
        try:
            algorithm = resolve(preset, {"normalise": normalise})
        except ConfigError:  # its estimator reads another comparison
            algorithm = resolve(preset)
        relative = algorithm.normalise == "relative"  # it trains on no rewards below 0
        given = [abs(score) if relative else score for score in scores]
        rows: Mapping[str, list[list[float]]] = {"reward": [[score] * STEPS for score in given]}
        states = [[f"{step}" for step in range(STEPS)]] * 4
        credit = step_credit(
            [1, -1, 1, -1], [[[1, -1]] * STEPS] * 4, algorithm=algorithm, scores=given, state=states, **rows
        )  # fmt: skip
        numbers = [a for row in credit.advantages for a in row]
        numbers += [r for row in credit.rewards for r in row if r is not None]
        assert all(math.isfinite(_squared(value)) for value in [*numbers, credit.spread]), preset


def _squared(value: float) -> float:
    """Return the sum of squares of a value over a million tokens, in float32."""
    single = np.float32(struct.unpack("f", struct.pack("f", value))[0])
    return float(single * single * np.float32(1e6))
