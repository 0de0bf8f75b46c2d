"""The results of an environment in a form that can be stored: text of whole characters, in the declared types.

Pages and programs that cut text in UTF-16 leave half of a surrogate pair, which no tokenizer or database accepts. It
becomes U+FFFD and is logged. It is not an error: otherwise a policy that types it could void its own measurement. A value
of another type than `triforge.rollout.protocols` declares is a malformed observation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from triforge.errors import ObservationError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import reported

_log = logging.getLogger(__name__)


def whole(text: str) -> str:
    """Return a text of whole characters: pairs of surrogates are joined, half ones become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def kept_reset(result: object) -> Reset:
    """Check and normalise the result of `reset`; raise ObservationError if it is malformed."""
    if not isinstance(result, Reset):
        raise _malformed("reset", result, "a Reset")
    return Reset(
        observation=_kept(result.observation, "reset"),
        system=_text(result.system, "reset: system"),
    )


def kept_step(result: object, turn: int) -> StepResult:
    """Check and normalise the result of `step` in a turn; raise ObservationError if it is malformed."""
    where = f"step {turn}"
    if not isinstance(result, StepResult):
        raise _malformed(where, result, "a StepResult")
    if result.score is not None and not result.done:
        raise ObservationError(
            f"{where}: score: given before the episode is done, expected with its last step; a single step has a reward"
        )
    if not isinstance(result.readings, Mapping):
        raise _malformed(f"{where}: readings", result.readings, "a mapping")
    readings = {
        str(name): _number(value, f"{where}: readings.{name}")
        for name, value in result.readings.items()
    }
    return replace(
        result,
        observation=_kept(result.observation, where),
        action=_text(result.action, f"{where}: action"),
        reward=_number(result.reward, f"{where}: reward"),
        score=_number(result.score, f"{where}: score"),
        local=_number(result.local, f"{where}: local"),
        share=_number(result.share, f"{where}: share"),
        readings={name: value for name, value in readings.items() if value is not None},
    )


def _number(value: object, where: str) -> float | None:
    if value is None:
        return None
    try:
        return reported(value, f"{where}: the environment gave")
    except ValueError as error:
        raise ObservationError(str(error)) from None


def _kept(seen: object, where: str) -> Observation:
    if not isinstance(seen, Observation):
        raise _malformed(f"{where}: observation", seen, "an Observation")
    for field, values in (("admissible", seen.admissible), ("images", seen.images)):
        if not isinstance(values, tuple | list):
            raise _malformed(f"{where}: {field}", values, "a tuple")
    for image in seen.images:
        if not isinstance(image, bytes):
            raise _malformed(f"{where}: images", image, "bytes")
    return Observation(
        text=_text(seen.text, f"{where}: text"),
        admissible=tuple(_text(one, f"{where}: admissible") for one in seen.admissible),
        images=tuple(seen.images),
        agent_id=_text(seen.agent_id, f"{where}: agent_id"),
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _malformed(where, value, "text")
    text = whole(value)
    if text is not value:
        _log.warning("malformed observation: %s holds half a character, replaced by U+FFFD", where)
    return text


def _malformed(where: str, value: object, expected: str) -> ObservationError:
    return ObservationError(
        f"{where}: the environment gave {type(value).__name__}, expected {expected}"
    )
