"""What each route of this service asks for. The weights are all tenants': only services and operators change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from triforge.access.callers import Rule

SAMPLING: Final = Rule(wants="submit")  # changes nothing that lasts, but occupies a model
_WEIGHTS = Rule(wants="operator", changes=True)

RULES: Final[Mapping[str, Rule]] = {
    "POST /v1/generate": SAMPLING,
    "POST /v1/chat/completions": SAMPLING,
    "GET /v1/models": Rule(wants="read"),
    "GET /v1/weights": Rule(wants="read"),
    "POST /v1/weights": _WEIGHTS,
    "POST /v1/weights/rollback": _WEIGHTS,
}
