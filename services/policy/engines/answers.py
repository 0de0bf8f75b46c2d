"""Readings of engines' answers that are the same for every kind of engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from services.policy.engines.protocol import Prompt
from triforge.errors import InputError, PolicyError
from triforge.types import VersionSpan

# What reading an answer raises that is not of the expected form.
UNEXPECTED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
# The name of weights that were never replaced; such an engine counts as version 0.
NEVER_UPDATED = "default"
# Engines' words for a prompt and an answer that do not fit: SGLang's two sentences, with `--max-total-tokens`, vLLM's, ours.
_TOO_LONG = re.compile(
    r"context length|maximum allowed length|max-total-tokens|maximum model length"
)


def is_too_long(detail: str) -> bool:
    """Return whether an engine's refusal means that the prompt has outgrown its context."""
    return _TOO_LONG.search(detail) is not None


def end_of(kind: Any, text: str, ids: Sequence[int], prompt: Prompt) -> tuple[Any, str]:
    """Return why an answer has ended, and its text.

    Engines say length of an answer that is whole with its last allowed token: SGLang 0.5.23 and vLLM 0.32 where a grammar is
    finished, which only JSON shows, and older SGLang at a stop token or stop string, which it leaves in the text.
    """
    if kind != "length":
        return kind, text
    for stop in prompt.sampling.stop:
        if stop in text:
            return "stop", text.partition(stop)[0]
    whole = prompt.sampling.json_schema is not None and _is_whole_json(text)
    return "stop" if whole or (ids and ids[-1] in prompt.stop_ids) else kind, text


def _is_whole_json(text: str) -> bool:
    """Return whether a text is JSON that more text would break: not a number, which more digits continue."""
    try:
        value = from_json(text)
    except ValueError:
        return False
    return isinstance(value, bool) or not isinstance(value, int | float)


def broken_off(error: Any, engine: str) -> InputError | PolicyError:
    """Return the error that an engine reports in the middle of a stream."""
    fields = error if isinstance(error, dict) else {"message": error}
    refused = str(fields.get("code")) == "400"
    return (InputError if refused else PolicyError)(f"engine {engine}: {fields.get('message')}")


def nonsense(engine: str, what: str, error: Exception, answer: Any) -> PolicyError:
    """Return the error for an answer that cannot be read."""
    return PolicyError(
        f"engine {engine}: {what} ({type(error).__name__}: {error}): {answer!r:.200}"
    )


def check_image_tokens(prompt: Prompt, counted: int, engine: str) -> None:
    """Compare the tokens that an engine counts in a prompt with images with ours."""
    if prompt.images is not None and counted != len(prompt.ids):
        raise PolicyError(
            f"engine {engine}: counts {counted} prompt tokens where we count {len(prompt.ids)}; does it scale images as "
            "the model folder's preprocessor_config.json says?"
        )


def version_of(text: object, engine: str) -> int:
    """Return a weight version as a number."""
    if text == NEVER_UPDATED:
        return 0
    try:
        return int(str(text))
    except ValueError:
        raise PolicyError(
            f"engine {engine}: weight version {text!r} is not a number; start it with --weight-version 0"
        ) from None


def spans_of(raw: Sequence[dict[str, Any]], size: int, engine: str) -> tuple[VersionSpan, ...]:
    """Return versions by token, covering [0, size) without a gap."""
    spans = tuple(
        VersionSpan(version=version_of(s["version"], engine), start=s["start"], end=s["end"])
        for s in raw
        if s["start"] < s["end"]
    )
    borders = [0, *(s.end for s in spans)]
    if [s.start for s in spans] != borders[:-1] or borders[-1] != size:
        raise ValueError(f"weight_versions {raw} do not cover the {size} tokens")
    return spans
