"""The correction for samples of other weights on NumPy and on strict arrays, against goldens."""

import math

import array_api_strict
import numpy as np
import pytest

from tests.unit.algorithms.parts import token_loss
from triforge.algorithms.losses import Tokens
from triforge.algorithms.off_policy import (
    Correction,
    importance_weights,
    opsm_keeps,
    staleness_measures,
)

both = pytest.mark.parametrize("xp", [np, array_api_strict], ids=["numpy", "strict"])

PROX, BEHAVE = [[-1.0, -0.5, -2.0]], [[-1.2, -0.4, -3.5]]
RATIOS = [1.221403, 0.904837, 4.481689]


def weigh(xp, prox=PROX, behave=BEHAVE, mask=None, **options):
    prox = xp.asarray(prox, dtype=xp.float64)
    mask = xp.ones(prox.shape, dtype=xp.bool) if mask is None else xp.asarray(mask)
    weights, metrics = importance_weights(
        prox, xp.asarray(behave, dtype=xp.float64), mask, Correction(**options)
    )
    rows, columns = weights.shape
    return [[float(weights[r, c]) for c in range(columns)] for r in range(rows)], metrics


@both
@pytest.mark.parametrize(
    ("new", "advantage", "expected"), [(-1.0, 1.0, -1.349859), (-1.5, -1.0, 0.977122)]
)
def test_decoupled_ppo_matches_its_goldens(xp, new, advantage, expected):
    [[weight]], _ = weigh(xp, [[-1.1]], [[-1.3]], mode="decoupled")
    tokens = Tokens(
        logprobs=xp.asarray([new]), prox=xp.asarray([-1.1]), advantages=xp.asarray([advantage])
    )
    loss = token_loss("ppo", tokens).values
    assert weight * float(loss[0]) == pytest.approx(expected, abs=1e-6)


@both
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "decoupled"}, RATIOS),
        ({"mode": "tis", "cap": 2.0}, [*RATIOS[:2], 2.0]),
        ({"mode": "mis", "band": (0.5, 2.0)}, [*RATIOS[:2], 0.0]),
        ({"mode": "decoupled", "level": "sequence"}, [4.953032] * 3),
        ({"mode": "tis", "level": "sequence", "cap": 5.0}, [4.953032] * 3),
        ({"mode": "tis", "level": "sequence", "cap": 2.0}, [2.0] * 3),
        ({"mode": "decoupled", "level": "geometric"}, [1.704605] * 3),
        ({"mode": "mis", "level": "geometric", "band": (0.99, 1.01)}, [0.0] * 3),
        ({"mode": "bypass"}, [1.0] * 3),
        ({"mode": "none"}, [1.0] * 3),
    ],
)
def test_weights_match_their_goldens(xp, options, expected):
    [weights], _ = weigh(xp, **options)
    assert weights == pytest.approx(expected, abs=1e-6)


@both
def test_both_ends_of_the_band_are_kept(xp):
    prox = [[math.log(0.5), math.log(2.0), math.log(0.49), math.log(2.01)]]
    [weights], metrics = weigh(xp, prox, [[0.0] * 4], mode="mis")
    assert weights == pytest.approx([0.5, 2.0, 0.0, 0.0])
    assert (metrics.masked, metrics.capped) == (0.5, 0.0)


@both
@pytest.mark.parametrize("mode", ["decoupled", "tis", "mis"])
def test_one_impossible_token_vetoes_its_whole_sequence_and_no_other(xp, mode):
    prox = [[-1.0, -11.0], [-1.0, -1.0]]
    weights, metrics = weigh(xp, prox, [[-1.0, -1.0]] * 2, mode=mode)
    assert weights == [[0.0, 0.0], [1.0, 1.0]]
    assert (metrics.vetoed, metrics.masked) == (0.5, 0.5)
    spared, _ = weigh(xp, prox, [[-1.0, -1.0]] * 2, mode=mode, veto=None)
    assert spared[0][0] == 1.0


@both
def test_what_is_no_token_has_no_weight_and_no_say(xp):
    loud = [[-1.0, -0.5, -2.0, -500.0], [-1.0, -500.0, -500.0, -500.0]]
    mask = [[True, True, True, False], [True, False, False, False]]
    for level in ("token", "sequence", "geometric"):
        options = {"mode": "decoupled", "level": level}
        weights, metrics = weigh(xp, loud, [[*BEHAVE[0], 0.0], [-1.0, 0, 0, 0]], mask, **options)
        alone, _ = weigh(xp, **options)
        assert weights == [[*alone[0], 0.0], [1.0, 0.0, 0.0, 0.0]]
        assert metrics.vetoed == 0.0


@both
def test_the_measures_tell_how_far_prox_is_from_what_sampled(xp):
    _, metrics = weigh(xp, mode="tis", cap=2.0)
    assert metrics.w_mean == pytest.approx(sum(RATIOS) / 3, abs=1e-6)
    assert metrics.w_max == pytest.approx(RATIOS[2], abs=1e-6)
    assert metrics.capped == pytest.approx(1 / 3)
    differences = [-0.2, 0.1, -1.5]  # behave - prox
    assert metrics.k1 == pytest.approx(sum(differences) / 3)
    assert metrics.k2 == pytest.approx(sum(d * d / 2 for d in differences) / 3)
    assert metrics.k3 == pytest.approx(sum(math.exp(-d) - 1 + d for d in differences) / 3)
    assert set(metrics.as_metrics()) >= {"off_policy_w_mean", "off_policy_k3"}


@both
def test_a_batch_without_tokens_weighs_nothing(xp):
    weights, metrics = weigh(xp, [[-1.0]], [[-2.0]], [[False]], mode="tis")
    assert (weights, metrics.w_max, metrics.masked) == ([[0.0]], 1.0, 0.0)


@both
def test_only_bad_sequences_that_have_drifted_away_are_dropped(xp):
    new = xp.asarray([[-3.0, -1.0], [-3.0, -1.0], [-1.1, -1.0]])
    behave = xp.asarray([[-1.0, -1.0]] * 3)
    advantages = xp.asarray([[-1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    mask = xp.asarray([[True, True]] * 3)
    kept = opsm_keeps(new, behave, advantages, mask, delta=0.9)
    assert [[bool(kept[r, c]) for c in range(2)] for r in range(3)] == [
        [False, False], [True, True], [True, True],
    ]  # fmt: skip
    drift_of_tokens_only = opsm_keeps(
        new, behave, advantages, xp.asarray([[False, True]] * 3), delta=0.9
    )
    assert [bool(drift_of_tokens_only[r, 1]) for r in range(3)] == [True] * 3


def test_staleness_is_reported_as_mean_maximum_and_shares():
    assert staleness_measures({0: 6, 2: 2}) == {"mean": 0.5, "max": 2.0, "0": 0.75, "2": 0.25}
    assert staleness_measures({}) == {}
