"""Hooks of schemathesis, in its interpreter: most reports are of rollouts that were drawn (`ROLLOUTS`), and their answers are not waited for.

What was generated against the schema stays so.
"""

from __future__ import annotations

import os
import re
from itertools import cycle
from typing import Any

import schemathesis

_DRAWN = cycle(os.environ["ROLLOUTS"].split())
_LONGEST_S = 0.3
_MOST = 2000  # characters of an error


@schemathesis.hook
def map_body(_: Any, body: Any) -> Any:
    """Return a body in which rollouts whose id has the right form exist, and have a result."""
    if not isinstance(body, dict) or not isinstance(body.get("rollouts"), list):
        return body
    rollouts = [
        _played(one) if isinstance(one, dict) and _is_id(one.get("id")) else one
        for one in body["rollouts"]
    ]
    wait = body.get("wait_s", _LONGEST_S)
    short = isinstance(wait, int | float) and _LONGEST_S <= wait <= 60
    return {**body, "rollouts": rollouts, **({"wait_s": _LONGEST_S} if short else {})}


def _played(one: dict[str, Any]) -> dict[str, Any]:
    messages, error = one.get("messages", []), one.get("error", "")
    if isinstance(messages, list):
        messages = [*messages, {"role": "assistant", "content": "look"}]
    if isinstance(error, str) and len(error) <= _MOST:
        error = ""
    return {"success": True, **one, "id": next(_DRAWN), "messages": messages, "error": error}


def _is_id(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{12}", text) is not None
