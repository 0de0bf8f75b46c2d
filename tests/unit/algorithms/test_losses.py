"""Losses on NumPy and on strict arrays, against goldens."""

import array_api_strict
import numpy as np
import pytest

from tests.unit.algorithms.parts import token_loss
from triforge.algorithms.loss_terms import (
    kl_k1,
    kl_k2,
    kl_k3,
    ratio_metrics,
    weighted_sum,
)
from triforge.algorithms.losses import Tokens

pytestmark = pytest.mark.parametrize("xp", [np, array_api_strict], ids=["numpy", "strict"])


def ppo(logprobs, old, advantages, **clips):
    tokens = Tokens(logprobs=logprobs, prox=old, advantages=advantages)
    return token_loss("ppo", tokens, **clips)


def _list(array):
    return np.asarray([float(array[i]) for i in range(array.shape[0])]).tolist()


def test_extreme_log_ratios_stay_finite(xp):
    logprobs, old = xp.asarray([-2000.0, 0.0]), xp.asarray([0.0, -2000.0])
    loss = ppo(logprobs, old, xp.asarray([-1.0, -1.0]), clip_low=0.2, clip_high=0.2).values
    assert _list(loss) == pytest.approx([0.8, np.exp(10.0)])
    assert _list(kl_k3(logprobs, old)) == [10.0, 10.0]
    assert np.isfinite(_list(kl_k3(logprobs, old, clamp=None))).all()


def test_the_kl_estimators_match_their_goldens(xp):
    logprobs, ref = xp.asarray([-1.0, -2.0]), xp.asarray([-1.5, -1.0])
    assert _list(kl_k1(logprobs, ref)) == pytest.approx([0.5, -1.0])
    assert _list(kl_k2(logprobs, ref)) == pytest.approx([0.125, 0.5])
    assert _list(kl_k3(logprobs, ref)) == pytest.approx([0.106531, 0.718282], abs=1e-6)


def test_kl_values_are_limited_by_the_clamp(xp):
    logprobs, ref = xp.asarray([-30.0, 0.0]), xp.asarray([0.0, -30.0])
    assert _list(kl_k1(logprobs, ref)) == [-10.0, 10.0]
    assert _list(kl_k2(logprobs, ref)) == [10.0, 10.0]
    assert _list(kl_k1(logprobs, ref, clamp=None)) == [-30.0, 30.0]


def test_whatever_padding_holds_does_not_reach_the_sum(xp):
    values = xp.asarray([1.0, float("nan"), float("inf")])
    assert float(weighted_sum(values, xp.asarray([0.5, 0.0, 0.0]))) == 0.5


def test_ratio_metrics_count_only_weighted_tokens(xp):
    ratios = xp.asarray([1.5, 1.5, 0.5, 1.0, 100.0])
    advantages = xp.asarray([1.0, -1.0, -1.0, 1.0, 1.0])
    found = ppo(xp.log(ratios), xp.zeros_like(ratios), advantages, clip_low=0.2, clip_high=0.2)
    weights = xp.asarray([0.1, 0.2, 0.3, 0.4, 0.0])
    metrics = ratio_metrics(found.log_ratio, found.clipped, weights)
    assert metrics.clip_share == 0.5  # the first is cut from above, the third from below
    assert metrics.mean_ratio == pytest.approx(4.5 / 4)
    assert metrics.max_ratio == pytest.approx(1.5)
    logs = 2 * np.log(1.5) + np.log(0.5)
    assert metrics.approx_kl == pytest.approx((4.5 - 4 - logs) / 4)


def test_metrics_of_nothing_say_that_nothing_moved(xp):
    metrics = ratio_metrics(xp.asarray([0.0]), None, xp.asarray([0.0]))
    assert (metrics.clip_share, metrics.approx_kl) == (0.0, 0.0)
    assert (metrics.mean_ratio, metrics.max_ratio) == (1.0, 1.0)
