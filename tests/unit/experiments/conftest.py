"""Models of a few thousand parameters that know the words of the household, for runs in process."""

from __future__ import annotations

import pytest

from demo.models.tiny_models import TinyShape, build_tiny_model
from environments.household.wording import vocabulary
from experiments.record import Models

_JUDGE_WORDS = [">", ";", "?", "task", r"\boxed{1}", r"\boxed{-1}"]


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Untrained ones, so nothing that they say is admissible."""
    folder = tmp_path_factory.mktemp("models")
    words = [*vocabulary({"wording": "terse"}), *_JUDGE_WORDS]
    shape = TinyShape(hidden=16, layers=1, heads=2)
    acts, reward = (
        build_tiny_model(folder / name, dict.fromkeys(words), shape=shape, seed=seed)
        for seed, name in enumerate(("policy", "reward"))
    )
    return Models(acts, reward, None)
