"""The loss of a forward pass: what belongs to a response is shared by its tokens, and what is measured is what was cut off."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from services.trainer.learner.loss import Scored, Tally, policy_loss
from tests.batches import any_algorithm
from triforge.algorithms.algorithm import Algorithm

NEW = [-1.0, -2.0, -0.5, -3.0, -0.1]
OLD = [-1.1, -1.8, -0.9, -3.0, -0.4]
RESPONSES = [4, 4, 4, 9, 9]


def settings(**options: Any) -> Algorithm:
    return any_algorithm(**{"kl_beta": 0.0, **options})


def scored(**changes: Any) -> Scored:
    fields: dict[str, Any] = {
        "new": torch.tensor(NEW, dtype=torch.float64, requires_grad=True),
        "old": torch.tensor(OLD, dtype=torch.float64),
        "prox": torch.tensor(OLD, dtype=torch.float64),
        "importance": None,
        "advantages": torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64),
        "weights": torch.tensor([1 / 6] * 3 + [1 / 4] * 2, dtype=torch.float64),
        "reference": None,
        "entropy": torch.full((5,), 2.0, dtype=torch.float64),
        "responses": torch.tensor(RESPONSES),
    }
    return Scored(**(fields | changes))


def gradient(given: Scored, **options: Any) -> torch.Tensor:
    policy_loss(given, settings(**options)).backward()  # type: ignore[no-untyped-call]
    assert given.new.grad is not None
    return given.new.grad


def value(given: Scored, **options: Any) -> float:
    return float(policy_loss(given, settings(**options)).detach())


def test_the_token_form_has_the_same_value_and_a_gradient_of_its_own_for_every_token():
    options: dict[str, Any] = {"clip_low": 0.9, "clip_high": 9.0}
    by_token = value(scored(), loss="gspo_token", **options)
    assert value(scored(), loss="gspo", **options) == pytest.approx(by_token)
    apart = torch.tensor([3.0, 0.0, 0.0, -1.0, -1.0], dtype=torch.float64)
    found = gradient(scored(advantages=apart), loss="gspo_token", **options)
    assert found[0] < 0 and found[1] == found[2] == 0.0  # noqa: PT018 (one vector)


def test_a_clipped_response_has_no_gradient_and_is_counted_as_cut_off():
    options: dict[str, Any] = {"loss": "gspo", "clip_low": 0.05, "clip_high": 0.05}
    given = scored()
    tally = Tally()
    tally.add(given, settings(**options))
    assert tally.metrics()["clip_share"] == pytest.approx(3 / 5)
    assert gradient(given, **options)[:3].tolist() == [0.0] * 3


def test_how_far_the_weights_have_moved_is_measured_without_any_anchor():
    tally = Tally()
    tally.add(scored(), settings())
    found = tally.metrics()
    moved = torch.tensor(OLD, dtype=torch.float64) - torch.tensor(NEW, dtype=torch.float64)
    wanted = (moved, moved.square() / 2, (-moved).exp() - 1 + moved)
    for name, values in zip(("k1", "k2", "k3"), wanted, strict=True):
        assert found[f"moved_{name}"] == pytest.approx(float(values.mean()))
    assert found["moved_k3"] == pytest.approx(found["approx_kl"])
    assert not {"kl_k1", "kl_k3"} & set(found)
