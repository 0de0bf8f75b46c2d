from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local_engine.models import build_folder, byte_tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with grouped heads, untied."""
    return build_folder(tmp_path_factory.mktemp("models") / "first", seed=0)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with other weights."""
    return build_folder(tmp_path_factory.mktemp("models") / "second", seed=1)


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model over bytes, tied, without grouped heads."""
    return build_folder(
        tmp_path_factory.mktemp("models") / "bytes",
        tokenizer=byte_tokenizer(),
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
