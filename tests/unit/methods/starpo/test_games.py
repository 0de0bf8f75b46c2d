"""StarPO and StarPO-S on the three games of RAGEN, with a table of logits (and one of values) in the place of models, or a tiny Llama.

Rewards, advantages, the filter and the estimator are the presets' own.
"""

from __future__ import annotations

from statistics import fmean

import pytest

from experiments.toys.games import curve

pytest.importorskip("gymnasium", reason="pip install -c constraints.txt -e '.[gymnasium]'")


def trained(game: str, preset: str, updates: int, seed: int, loop: int = 0) -> tuple[float, float]:
    """Success in the first updates, and in the last."""
    success = [*curve(seed, game=game, preset=preset, updates=updates, loop=loop)]
    return fmean(success[:3]), fmean(success[-5:])


@pytest.mark.parametrize("preset", ["starpo", "starpo_s"])
@pytest.mark.parametrize("game", ["frozen_lake", "sokoban"])
def test_a_table_learns_to_find_its_way(game: str, preset: str) -> None:
    before, after = trained(game, preset, updates=24, seed=0)
    assert after > before + 0.2, (before, after)


def test_on_the_bandit_a_critic_finds_the_better_arm_and_comparing_few_pulls_does_not() -> None:
    """Most groups of eight pulls have no large pay: standardised within them, the calm arm looks better than it is."""
    (_, compared), (before, after) = (trained("bandit", p, 20, 0) for p in ("starpo", "starpo_s"))
    assert after > before + 0.2 > compared, (compared, before, after)


def test_a_tiny_language_model_learns_the_bandit() -> None:
    success = [*curve(1, game="bandit", preset="starpo_s", updates=20, reader=True)]
    assert fmean(success[-5:]) > fmean(success[:3]) + 0.2, success
