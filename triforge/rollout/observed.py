"""What an environment says, as everything behind it can keep it: text of whole characters, in the declared types.

Pages and programs that cut text in UTF-16 leave half of a surrogate pair, which no tokenizer, database or answer holds. It is
shown as U+FFFD and logged. It is not refused: a policy that types could otherwise void its own measurement. Whatever is of
another type than `triforge.rollout.protocols` declares is refused as a malformed observation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import SupportsFloat

from triforge.errors import ObservationError
from triforge.rollout.protocols import Observation, Reset, StepResult

_log = logging.getLogger(__name__)


def whole(text: str) -> str:
    """`text` in whole characters: surrogates that belong together are joined, half ones become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def kept_reset(found: object) -> Reset:
    """What `reset` answered; an ObservationError if it is none."""
    if not isinstance(found, Reset):
        raise _malformed("reset", found, "a Reset")
    return Reset(
        observation=_kept(found.observation, "reset"), system=_text(found.system, "reset: system")
    )


def kept_step(found: object, turn: int) -> StepResult:
    """What `step` answered in a turn; an ObservationError if it is none."""
    where = f"step {turn}"
    if not isinstance(found, StepResult):
        raise _malformed(where, found, "a StepResult")
    if found.score is not None and not found.done:
        raise ObservationError(
            f"{where}: score: given before the episode is done, expected with its last step; what a step earns is its reward"
        )
    if not isinstance(found.readings, Mapping):
        raise _malformed(f"{where}: readings", found.readings, "a mapping")
    readings = {
        str(name): _finite(value, f"{where}: readings.{name}")
        for name, value in found.readings.items()
    }
    return replace(
        found,
        observation=_kept(found.observation, where),
        action=_text(found.action, f"{where}: action"),
        reward=_finite(found.reward, f"{where}: reward"),
        score=_finite(found.score, f"{where}: score"),
        local=_finite(found.local, f"{where}: local"),
        readings={name: value for name, value in readings.items() if value is not None},
    )


def _finite(value: object, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, SupportsFloat):
        raise _malformed(where, value, "a number")
    if not math.isfinite(number := float(value)):
        raise ObservationError(f"{where}: the environment gave {number}, expected a finite number")
    return number


def _kept(found: object, where: str) -> Observation:
    if not isinstance(found, Observation):
        raise _malformed(f"{where}: observation", found, "an Observation")
    for field, values in (("admissible", found.admissible), ("images", found.images)):
        if not isinstance(values, tuple | list):
            raise _malformed(f"{where}: {field}", values, "a tuple")
    for image in found.images:
        if not isinstance(image, bytes):
            raise _malformed(f"{where}: images", image, "bytes")
    return Observation(
        text=_text(found.text, f"{where}: text"),
        admissible=tuple(_text(one, f"{where}: admissible") for one in found.admissible),
        images=tuple(found.images),
        agent_id=_text(found.agent_id, f"{where}: agent_id"),
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _malformed(where, value, "text")
    text = whole(value)
    if text is not value:
        _log.warning(
            "malformed observation: %s holds half a character; it is shown as U+FFFD", where
        )
    return text


def _malformed(where: str, found: object, expected: str) -> ObservationError:
    return ObservationError(
        f"{where}: the environment gave {type(found).__name__}, expected {expected}"
    )
