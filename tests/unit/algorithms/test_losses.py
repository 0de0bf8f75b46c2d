"""Policy losses, values, pairs and returns: the published numbers."""

import math

import array_api_strict
import numpy as np
import pytest

from tests.unit.algorithms.parts import token_loss
from triforge.algorithms.estimators.bilevel_gae import bilevel_gae_advantages as bilevel_gae
from triforge.algorithms.estimators.gae import gae_advantages as gae
from triforge.algorithms.estimators.gae import returns_to_go
from triforge.algorithms.jobs.imitation import PairLoss, best_of, pair_loss
from triforge.algorithms.loss_terms import (
    kl_k1,
    kl_k2,
    kl_k3,
    ratio_metrics,
    value_loss,
    weighted_sum,
)
from triforge.algorithms.losses import Tokens
from triforge.errors import InputError

both = pytest.mark.parametrize("xp", [np, array_api_strict], ids=["numpy", "strict"])

V = [0.1 * i for i in range(1, 11)]


def mean(values):
    return np.full_like(values, values.mean())


def loss_at(ratio, advantage, logprob=-0.5, loss="ppo", **options):
    lp = np.array([logprob])
    old = lp - math.log(ratio)
    tokens = Tokens(logprobs=lp, prox=old, advantages=np.array([advantage]), pooled=mean)
    return float(token_loss(loss, tokens, **options).values[0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "rule", "expected"),
    [
        (1.5, 1, {}, -1.28),
        (0.5, 1, {}, -0.5),
        (1.5, -1, {}, 1.5),
        (0.5, -1, {}, 0.8),
        (5, -1, {}, 5),
        (5, -1, {"dual_clip": 3}, 3),
        (5, 1, {"dual_clip": 3}, -1.28),
        (2, -1, {"dual_clip": 3}, 2),
    ],
)
def test_the_clipped_losses_have_the_published_values(ratio, advantage, rule, expected):
    assert loss_at(ratio, advantage, clip_high=0.28, **rule) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "logprob", "low", "expected"),
    [(1.5, 1, -0.5, 1.0, 0.64), (0.3, -1, -2, 1.0, -0.6), (0.3, -1, -2, 0.2, -1.6)],
)
def test_cispo_weighs_the_log_probability_and_clips_the_weight_only(
    ratio, advantage, logprob, low, expected
):
    found = loss_at(ratio, advantage, logprob, loss="cispo", clip_low=low, clip_high=0.28)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["gspo", "gspo_token"])
def test_a_sequence_ratio_is_the_geometric_mean_of_its_tokens(loss):
    lp = np.array([-1.0, -2.0, -3.0])
    tokens = Tokens(
        logprobs=lp, prox=lp - np.array([0.1, -0.2, 0.4]), advantages=np.ones(3), pooled=mean
    )
    result = token_loss(loss, tokens, clip_low=3e-4, clip_high=4e-4)
    found = result.log_ratio
    assert np.exp(found) == pytest.approx([1.105171] * 3, abs=1e-6)
    assert math.exp(found.sum()) == pytest.approx(
        1.349859, abs=1e-6
    )  # what it would be unnormalised
    assert result.values == pytest.approx([-1.0004] * 3)


def test_reinforce_is_cispo_of_weight_one_and_sapo_has_the_slope_of_reinforce_on_policy():
    assert loss_at(1.0, 2.0, -0.7, loss="reinforce") == pytest.approx(1.4)
    assert loss_at(1.0, 2.0, -0.7, loss="cispo") == pytest.approx(1.4)
    for advantage in (1.0, -1.0):
        step = 1e-5
        ends = [loss_at(1.0 + s, advantage, loss="sapo") for s in (step, -step)]
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(-advantage, abs=1e-6)


def test_the_value_loss_takes_the_worse_of_the_moved_and_the_clipped_value():
    args = np.array([1.0, 0.6]), np.array([0.0, 1.0]), np.array([0.5, 0.5])
    assert value_loss(*args, clip=None) == pytest.approx([0.5, 0.08])
    assert value_loss(*args, clip=0.2) == pytest.approx([0.5, 0.08])
    assert value_loss(np.array([0.9]), np.array([1.0]), np.array([0.5]), clip=0.2) == pytest.approx(
        [0.045]
    )


# ---- on NumPy and on strict arrays ----


def ppo(logprobs, old, advantages, **clips):
    tokens = Tokens(logprobs=logprobs, prox=old, advantages=advantages)
    return token_loss("ppo", tokens, **clips)


def _list(array):
    return np.asarray([float(array[i]) for i in range(array.shape[0])]).tolist()


@both
def test_extreme_log_ratios_stay_finite(xp):
    logprobs, old = xp.asarray([-2000.0, 0.0]), xp.asarray([0.0, -2000.0])
    loss = ppo(logprobs, old, xp.asarray([-1.0, -1.0]), clip_low=0.2, clip_high=0.2).values
    assert _list(loss) == pytest.approx([0.8, np.exp(10.0)])
    assert _list(kl_k3(logprobs, old)) == [10.0, 10.0]
    assert np.isfinite(_list(kl_k3(logprobs, old, clamp=None))).all()


@both
def test_the_kl_estimators_match_their_goldens(xp):
    logprobs, ref = xp.asarray([-1.0, -2.0]), xp.asarray([-1.5, -1.0])
    assert _list(kl_k1(logprobs, ref)) == pytest.approx([0.5, -1.0])
    assert _list(kl_k2(logprobs, ref)) == pytest.approx([0.125, 0.5])
    assert _list(kl_k3(logprobs, ref)) == pytest.approx([0.106531, 0.718282], abs=1e-6)


@both
def test_kl_values_are_limited_by_the_clamp(xp):
    logprobs, ref = xp.asarray([-30.0, 0.0]), xp.asarray([0.0, -30.0])
    assert _list(kl_k1(logprobs, ref)) == [-10.0, 10.0]
    assert _list(kl_k2(logprobs, ref)) == [10.0, 10.0]
    assert _list(kl_k1(logprobs, ref, clamp=None)) == [-30.0, 30.0]


@both
def test_whatever_padding_holds_does_not_reach_the_sum(xp):
    values = xp.asarray([1.0, float("nan"), float("inf")])
    assert float(weighted_sum(values, xp.asarray([0.5, 0.0, 0.0]))) == 0.5


@both
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


@both
def test_metrics_of_nothing_say_that_nothing_moved(xp):
    metrics = ratio_metrics(xp.asarray([0.0]), None, xp.asarray([0.0]))
    assert (metrics.clip_share, metrics.approx_kl) == (0.0, 0.0)
    assert (metrics.mean_ratio, metrics.max_ratio) == (1.0, 1.0)


# ---- returns ----


def test_gae_gives_the_published_numbers():
    plain = gae([0, 0, 1], [0.1, 0.2, 0.3])
    assert plain.advantages == pytest.approx([0.9, 0.8, 0.7])
    assert plain.returns == pytest.approx([1.0, 1.0, 1.0])
    discounted = gae([0, 0, 1], [0.1, 0.2, 0.3], gamma=0.99, lam=0.95)
    assert discounted.advantages == pytest.approx([0.808407, 0.75535, 0.7], abs=1e-6)


@pytest.mark.parametrize(
    ("rewarded", "advantages", "returns"),
    [
        ([4, 9], [1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0], [1.95] * 5 + [1.0] * 5),
        ([9], [0.85, 0.75, 0.65, 0.55, 0.45, 0.4, 0.3, 0.2, 0.1, 0.0], [0.95] * 5 + [1.0] * 5),
    ],
)
def test_bilevel_gae_gives_the_published_numbers(rewarded, advantages, returns):
    rewards = [float(i in rewarded) for i in range(10)]
    found = bilevel_gae(rewards, V, [4, 9])
    assert found.advantages == pytest.approx(advantages, abs=1e-9)
    assert found.returns == pytest.approx(returns)


def test_returns_to_go_add_up_what_is_still_to_come():
    assert returns_to_go([-0.1, -0.2, 1.0]) == pytest.approx([0.7, 0.8, 1.0])
    assert returns_to_go([0.0, 0.0, 1.0], gamma=0.5) == pytest.approx([0.25, 0.5, 1.0])
    assert len(returns_to_go([])) == len(bilevel_gae([], [], []).advantages) == 0


# ---- pairs ----


@pytest.mark.parametrize(("mean_over_steps", "expected"), [(False, 0.668460), (True, 0.680725)])
def test_the_loss_of_a_pair_of_trajectories_has_the_published_value(mean_over_steps, expected):
    steps = [[0.05 * ratio for ratio in row] for row in ([0.8, -0.2], [-0.5, 0.1])]
    assert steps[0] + steps[1] == pytest.approx([0.04, -0.01, -0.025, 0.005])
    scores = [sum(row) / (len(row) if mean_over_steps else 1) for row in steps]
    found = pair_loss(scores, [True, False], ["g", "g"])
    assert found.loss == pytest.approx(expected, abs=1e-6)
    assert (found.pairs, found.right) == (1, 1.0)


def test_the_slopes_are_the_derivatives_of_the_loss():
    scores, better = [0.3, -0.1, 0.2, 0.4, 5.0], [True, False, False, True, True]
    groups = ["g", "g", "g", "h", "g"]
    found = pair_loss(scores, better, groups)
    assert found.pairs == 4  # no unit is worse than the one unit of h
    for i in range(5):
        moved = [s + 1e-6 * (j == i) for j, s in enumerate(scores)]
        slope = (pair_loss(moved, better, groups).loss - found.loss) / 1e-6
        assert found.slopes[i] == pytest.approx(slope, abs=1e-6)
    assert found.slopes[3] == 0.0


def test_groups_of_one_side_make_no_pairs_and_far_scores_no_overflow():
    assert pair_loss([1.0, 2.0], [True, True], ["g", "g"]).loss == 0.0
    assert pair_loss([], [], []) == PairLoss(0.0, (), 0, 0.0)
    far = pair_loss([-1e6, 1e6], [True, False], ["g", "g"])
    assert (far.loss, far.slopes) == (2e6, (-1.0, 1.0))
    with pytest.raises(InputError, match="expected equal numbers"):
        pair_loss([1.0], [True, False], ["g"])


def test_imitation_is_spread_over_candidates_by_their_value():
    assert best_of([1, 2, 0.5]) == pytest.approx([0.231224, 0.628532, 0.140244], abs=1e-6)
    assert best_of([1, 2, 2], temperature=0) == [0.0, 0.5, 0.5]
    assert best_of([]) == []
