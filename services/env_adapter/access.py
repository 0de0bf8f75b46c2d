"""What each route of this service asks for. `read` looks, `submit` makes and steers, `admin` does what is for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from triforge.access.callers import Rule

_LOOK = Rule(wants="read")
_STEER = Rule(wants="submit", changes=True)
_FOR_GOOD = Rule(wants="admin", changes=True)

RULES: Final[Mapping[str, Rule]] = {
    "GET /v1/pools": _LOOK,
    "POST /v1/pools": _STEER,
    "GET /v1/pools/{pool}": _LOOK,
    "PATCH /v1/pools/{pool}": _STEER,
    "GET /v1/pools/{pool}/export": _LOOK,
    "GET /v1/pools/{pool}/tasks": _LOOK,
    "GET /v1/pools/{pool}/proposals": _LOOK,
    "GET /v1/pools/{pool}/audit": _LOOK,
    "POST /v1/pools/{pool}/plans": Rule(wants="service", changes=True),
    "POST /v1/pools/{pool}/pause": _STEER,
    "POST /v1/pools/{pool}/resume": _STEER,
    "POST /v1/pools/{pool}/retire": _FOR_GOOD,
    "GET /v1/tasks/{task_id}": _LOOK,
    "GET /v1/tasks/{task_id}/lineage": _LOOK,
    "POST /v1/tasks/{task_id}/rollback": _FOR_GOOD,
    "POST /v1/tasks/{task_id}/pause": _STEER,
    "POST /v1/tasks/{task_id}/resume": _STEER,
    "POST /v1/tasks/{task_id}/retire": _FOR_GOOD,
    "POST /v1/tasks/{task_id}/pin": _STEER,
    "POST /v1/tasks/{task_id}/unpin": _STEER,
    "GET /v1/proposals/{proposal_id}": _LOOK,
    "POST /v1/proposals/{proposal_id}/approve": _STEER,
    "POST /v1/proposals/{proposal_id}/reject": _STEER,
    "GET /v1/audit": Rule(wants="admin"),
}
