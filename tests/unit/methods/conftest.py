"""The tiny model, rows and batches of the trainer's tests, for methods."""

from tests.unit.trainer.conftest import make_batch, model_folder, rows

__all__ = ["make_batch", "model_folder", "rows"]
