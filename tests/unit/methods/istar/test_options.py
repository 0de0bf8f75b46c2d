"""Implicit rewards are refused without the parts that give them a scale."""

from __future__ import annotations

from typing import Any

import pytest

from triforge.config import merge, parse
from triforge.errors import ConfigError

IMPLICIT: dict[str, Any] = {"reward": {"kind": "istar"}, "algorithm": {"preset": "istar"}}


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"algorithm": {"preset": "rlanything"}}, "reward.kind: given 'istar' .*'step_index'"),
        ({"algorithm": {"overrides": {"train_reward_model": False}}}, "train_reward_model = False"),
        ({"models": {"policy": {"temperature": 0.8}}}, "models.policy.temperature = 0.8"),
        ({"env_adapter": {"rollouts": 1}}, "env_adapter.rollouts: given 1"),
        (
            {"reward": {"kind": "votes"}, "methods": {"istar": {"beta": 0.1}}},
            "istar.beta: given 0.1",
        ),
    ],
)
def test_a_combination_is_refused(over: dict[str, Any], problem: str) -> None:
    assert parse(IMPLICIT).algorithm_of("reward").job == "dpo_pair"
    with pytest.raises(ConfigError, match=problem):
        parse(merge(IMPLICIT, over))
