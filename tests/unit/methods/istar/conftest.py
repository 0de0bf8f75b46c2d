"""The tiny model of the trainer's tests."""

from tests.unit.trainer.conftest import model_folder, rows

__all__ = ["model_folder", "rows"]
