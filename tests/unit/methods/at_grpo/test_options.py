"""Tree rollouts are refused together with parts that read candidates as the steps of a trajectory."""

from __future__ import annotations

from typing import Any

import pytest

from triforge.config import merge, parse
from triforge.errors import ConfigError

TREE: dict[str, Any] = {
    "env_adapter": {"strategy": "at_grpo"},
    "algorithm": {"preset": "at_grpo"},
    "adaptation": {"controller": "none"},
}


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"env_adapter": {"strategy": "group"}}, "env_adapter.strategy: given 'group' .*'branch'"),
        ({"algorithm": {"preset": "rlanything"}}, "strategy: given 'at_grpo' .*'step_index'"),
        ({"algorithm": {"preset": "gigpo"}}, "strategy: given 'at_grpo' .*'gigpo'"),
        ({"algorithm": {"overrides": {"use_votes": True}}}, "estimator: given 'branch' with votes"),
        (
            {"algorithm": {"overrides": {"mixed_groups_only": True}}},
            "'branch' with mixed_groups_only",
        ),
        ({"algorithm": {"overrides": {"job": "ce"}}}, "job: given 'ce'"),
        ({"env_adapter": {"played_by": "sessions"}}, "env_adapter.played_by = 'sessions'"),
        ({"adaptation": {"controller": "rlve"}}, "adaptation.controller = 'rlve'"),
        ({"methods": {"envrl": {"measure": True}}}, "methods.envrl: given weights"),
    ],
)
def test_a_combination_is_refused(over: dict[str, Any], problem: str) -> None:
    assert parse(TREE).extra == {"at_grpo": {"team_weight": 1.0}}
    with pytest.raises(ConfigError, match=problem):
        parse(merge(TREE, over))


def test_a_weight_that_no_strategy_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"methods.at_grpo.team_weight: given 2\.0"):
        parse({"methods": {"at_grpo": {"team_weight": 2.0}}})


def test_old_names_of_options_and_values_are_refused_with_the_new_ones() -> None:
    with pytest.raises(ConfigError, match=r"moved to methods\.at_grpo\.team_weight"):
        parse({"env_adapter": {"team_weight": 2.0}})
    with pytest.raises(ConfigError, match="given 'tree', which is 'at_grpo' now"):
        parse({"env_adapter": {"strategy": "tree"}})
