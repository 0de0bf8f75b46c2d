"""What each route of this service asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from triforge.access.callers import Rule

# It changes nothing that lasts, but it occupies a model.
RULES: Final[Mapping[str, Rule]] = {"POST /v1/judge": Rule(wants="submit")}
