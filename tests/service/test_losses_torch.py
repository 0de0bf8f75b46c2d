"""Gradients of the losses in torch are finite where the policies are far apart."""

import pytest

from tests.unit.algorithms.parts import token_loss
from triforge.algorithms.loss_terms import kl_k3, weighted_sum
from triforge.algorithms.losses import Tokens

torch = pytest.importorskip("torch")


def test_gradients_stay_finite_where_the_policies_are_worlds_apart():
    logprobs = torch.tensor([-2000.0, 0.0, -1.0, -1.0], requires_grad=True)
    old = torch.tensor([0.0, -2000.0, -1.0, float("nan")])
    weights = torch.tensor([0.3, 0.3, 0.4, 0.0])
    tokens = Tokens(logprobs=logprobs, prox=old, advantages=torch.ones(4))
    loss = token_loss("ppo", tokens, clip_low=0.2, clip_high=0.28).values
    total = weighted_sum(loss + 0.01 * kl_k3(logprobs, old), weights)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logprobs.grad).all()
    assert logprobs.grad[2] == pytest.approx(-0.4)
