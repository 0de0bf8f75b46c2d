"""The folder that speed is measured with is one that a learner packs."""

from pathlib import Path

from bench.random_model import Shape, random_model
from services.trainer.model import ScoringModel

TINY = Shape(layers=1, hidden=32, heads=4, groups=2, inner=48, vocabulary=64)


def test_a_random_model_has_the_sizes_that_were_asked_for_and_is_packed(tmp_path: Path) -> None:
    count = random_model(tmp_path, TINY)
    model = ScoringModel.load(tmp_path)
    assert model.packs
    assert model.vocabulary == 64
    assert sum(p.numel() for p in model.parameters().values()) == count
