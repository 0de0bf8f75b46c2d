"""The table of architectures says what the local engine and the learner say."""

from __future__ import annotations

import re

import pytest

from scripts import gen_models

TABLE = (gen_models.DOCS / "training.md").read_text("utf-8").partition(gen_models.MARKS[0])[2]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_a_row_of_the_table_is_what_a_small_model_shows(kind: str) -> None:
    found = gen_models.tried(kind)
    assert found is not None
    assert re.search(rf"^\| `{kind}` \| \w+ \| {found[0]} \| {found[1]} \|$", TABLE, re.MULTILINE)


def test_a_model_that_looks_ahead_is_not_in_it() -> None:
    assert gen_models.tried("bert") is None
    assert "| `bert` |" not in TABLE
