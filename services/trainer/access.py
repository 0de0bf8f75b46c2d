"""What each route of this service asks for. `read` looks, `submit` makes and steers, `admin` does what is for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from triforge.access.callers import Rule

_LOOK = Rule(wants="read")
_STEER = Rule(wants="submit", changes=True)

RULES: Final[Mapping[str, Rule]] = {
    "GET /v1/runs": _LOOK,
    "POST /v1/runs": _STEER,
    "GET /v1/runs/{run_id}": _LOOK,
    "GET /v1/runs/{run_id}/steps": _LOOK,
    "GET /v1/runs/{run_id}/report": _LOOK,
    "GET /v1/runs/{run_id}/events": _LOOK,
    "GET /v1/runs/{run_id}/weights": _LOOK,
    "GET /v1/runs/{run_id}/export": _LOOK,
    "POST /v1/runs/{run_id}/stop": _STEER,
    "POST /v1/runs/{run_id}/resume": _STEER,
    "POST /v1/runs/{run_id}/rollback": Rule(wants="admin", changes=True),
}
