"""Our losses and gradients are those that TRL 1.16 gave for the same model, batch and variant.

`python -m scripts.trl_equality` asks TRL anew; `make conformance` does so.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from scripts.trl_equality import cases, ours

TRL = json.loads((Path(__file__).parent / "trl" / "losses.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    made = tmp_path_factory.mktemp("trl")
    return ours.write_model(made / "model"), ours.write_model(made / "reference", reference=True)


def test_trl_was_asked_every_case() -> None:
    assert TRL["cases"].keys() == cases.CASES.keys()
    assert TRL["trl"].startswith("1.16.")


@pytest.mark.parametrize("name", cases.CASES)
def test_loss_and_gradient_are_those_of_trl(name: str, folders: tuple[Path, Path]) -> None:
    found = ours.ask(cases.CASES[name], *folders)
    assert ours.difference(found, TRL["cases"][name]) <= ours.TOLERANCE


def test_variants_that_are_not_the_same_differ(folders: tuple[Path, Path]) -> None:
    found = ours.ask(cases.CASES["grpo"], *folders)
    unlike = set(cases.CASES) - {"grpo"}
    apart = 100 * ours.TOLERANCE
    assert all(ours.difference(found, TRL["cases"][name]) > apart for name in unlike)
