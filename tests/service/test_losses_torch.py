"""The learner's arrays give the same numbers as NumPy, and gradients that are finite."""

import numpy as np
import pytest

from tests.unit.algorithms.parts import token_loss
from triforge.algorithms.loss_terms import (
    KL_ESTIMATORS,
    kl_k3,
    ratio_metrics,
    weighted_sum,
)
from triforge.algorithms.losses import Tokens

torch = pytest.importorskip("torch")

CLIPS = {"clip_low": 0.2, "clip_high": 0.28}


def ppo(logprobs, old, advantages, **clips):
    return found(logprobs, old, advantages, **clips).values


def found(logprobs, old, advantages, **clips):
    tokens = Tokens(logprobs=logprobs, prox=old, advantages=advantages)
    return token_loss("ppo", tokens, **clips)


@pytest.fixture
def arrays():
    draw = np.random.default_rng(7)
    logprobs = -draw.exponential(1.0, (3, 5))
    old = logprobs + draw.normal(0.0, 0.5, (3, 5))
    weights = np.where(draw.random((3, 5)) < 0.7, 1 / 15, 0.0)
    return logprobs, old, draw.normal(size=(3, 5)), weights


def test_torch_and_numpy_agree_on_every_loss(arrays):
    logprobs, old, advantages, weights = arrays
    tensors = [torch.from_numpy(a) for a in arrays]
    loss = ppo(logprobs, old, advantages, **CLIPS)
    np.testing.assert_allclose(ppo(*tensors[:3], **CLIPS).numpy(), loss, rtol=1e-12)
    for kl in KL_ESTIMATORS.values():
        np.testing.assert_allclose(
            kl(tensors[0], tensors[1]).numpy(), kl(logprobs, old), rtol=1e-12
        )
    assert float(weighted_sum(torch.from_numpy(loss), tensors[3])) == pytest.approx(
        float(weighted_sum(loss, weights))
    )
    ours, theirs = (
        ratio_metrics(pieces.log_ratio, pieces.clipped, given[3])
        for given in (arrays, tensors)
        for pieces in [found(*given[:3], **CLIPS)]
    )
    for field in ("clip_share", "approx_kl", "mean_ratio", "max_ratio"):
        assert getattr(ours, field) == pytest.approx(getattr(theirs, field))


def test_gradients_stay_finite_where_the_policies_are_worlds_apart():
    logprobs = torch.tensor([-2000.0, 0.0, -1.0, -1.0], requires_grad=True)
    old = torch.tensor([0.0, -2000.0, -1.0, float("nan")])
    weights = torch.tensor([0.3, 0.3, 0.4, 0.0])
    loss = ppo(logprobs, old, torch.ones(4), **CLIPS) + 0.01 * kl_k3(logprobs, old)
    total = weighted_sum(loss, weights)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logprobs.grad).all()
    assert logprobs.grad[2] == pytest.approx(-0.4)
