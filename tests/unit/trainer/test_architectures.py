"""The generated table of architectures: each row is the result of a small model."""

from __future__ import annotations

import pytest

from scripts import gen_models


@pytest.mark.parametrize(
    ("kind", "tried"), [("llama", True), ("qwen3", True), ("gemma2", True), ("bert", False)]
)
def test_a_model_that_looks_back_only_is_in_the_table(kind: str, tried: bool) -> None:
    assert (gen_models.tried(kind) is not None) is tried
