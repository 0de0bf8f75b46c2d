"""The door for numbers that users' code reports: scores, rewards of steps, metrics, readings of environments, scores of judges.

Every such number enters through `number`: in messages as a field of the type `Reported`, elsewhere by `reported`.
"""

from __future__ import annotations

from typing import Annotated, Final, SupportsFloat

from pydantic import BeforeValidator, Field

LARGEST: Final = 1e12
"""The largest absolute value of a reported number.

Its square is 1e24, and float32, in which learners compute, ends at 3e38: sums of squares of returns over ten thousand steps,
over any group and any batch, stay below. A larger number is refused; divided by a constant it trains the same.
"""
_EXPECTED: Final = (
    f"expected a number from -{LARGEST:g} to {LARGEST:g}: divide larger ones by a constant, and leave out what "
    "was not measured"
)
_NO_NUMBERS: Final = tuple("cUSOMm")  # numpy's letters of complex numbers, texts, objects and times
_SHOWN: Final = 80  # characters of a wrong value


def number(value: object) -> float:
    """Return a reported number as a float; anything that converts itself to a float is one (numpy, torch, Decimal, bool).

    Raises:
        ValueError: it is text, bytes, an object of other data, not finite, or beyond `LARGEST`; the sentence says what is expected.
    """
    if not isinstance(value, SupportsFloat) or isinstance(value, (str, bytes)):
        raise ValueError(_EXPECTED)
    # numpy's texts and complex numbers convert themselves too, with their meaning or a half of them lost
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if isinstance(kind, str) and kind in _NO_NUMBERS:
        raise ValueError(_EXPECTED)
    try:
        converted = float(value)
    except (
        Exception
    ) as error:  # an array of many, an integer too large, an object of the user's own
        raise ValueError(_EXPECTED) from error
    if not abs(converted) <= LARGEST:
        raise ValueError(_EXPECTED)
    return converted


def reported(value: object, what: str) -> float:
    """Return a reported number; `what` names it and its reporter in the ValueError, which shows the value."""
    try:
        return number(value)
    except ValueError as error:
        raise ValueError(f"{what} {_shown(value)}, {error}") from None


def _shown(value: object) -> str:
    try:
        text = f"{type(value).__name__} {value!r}"
    except Exception:  # noqa: BLE001  an integer of too many digits, an object of the user's own
        return f"a value of the type {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


Reported = Annotated[
    float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False), BeforeValidator(number)
]
