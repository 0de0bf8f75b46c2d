"""Unit tests are refused together with options that compare steps or read votes."""

from __future__ import annotations

from typing import Any

import pytest

from triforge.algorithms.algorithm import resolve
from triforge.algorithms.presets import preset_names
from triforge.config import parse
from triforge.errors import ConfigError

CURE: dict[str, Any] = {"reward": {"kind": "cure"}}
CRITICS = sorted(name for name in preset_names() if resolve(name).needs_critic)


@pytest.mark.parametrize(
    ("algorithm", "field"),
    [
        ({"overrides": {"vote_weight": "trust"}}, "vote_weight"),
        ({"overrides": {"estimator": "gigpo"}}, "estimator"),
        ({"overrides": {"estimator": "fused"}}, "estimator"),
        *(({"preset": name}, "estimator") for name in CRITICS),
    ],
)
def test_whole_programs_are_compared(algorithm: dict[str, Any], field: str) -> None:
    assert parse(CURE).reward.chosen.by_group
    with pytest.raises(ConfigError, match=f"reward.kind: given 'cure' with .*{field}"):
        parse(CURE | {"algorithm": algorithm})
