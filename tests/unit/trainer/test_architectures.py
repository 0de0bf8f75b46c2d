"""Small models of each architecture in the local engine and in the learner."""

from __future__ import annotations

import pytest

from scripts import gen_models


@pytest.mark.parametrize(
    ("kind", "served", "trained"),
    [
        ("llama", "own kernel", "packed rows"),
        ("qwen3", "yes", "packed rows"),
        ("gemma2", "no", "yes"),
    ],
)
def test_a_small_model_is_served_and_trained(kind: str, served: str, trained: str) -> None:
    assert gen_models.tried(kind) == (served, trained)


def test_a_model_that_looks_ahead_is_neither() -> None:
    assert gen_models.tried("bert") is None
