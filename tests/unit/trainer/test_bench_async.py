"""The bench of playing ahead runs on the orchestrator as it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

bench: Any = importlib.import_module("bench.async")  # its name is a word of the language


def test_a_run_that_plays_ahead_stays_within_its_bound_as_its_learners_see_it(
    tmp_path: Path,
) -> None:
    found = bench.run(bench.measure(1, "wait", 2, 10.0, tmp_path))
    assert (found["staleness_min"], found["staleness_max"]) == (0, 1)
    assert (found["masked"], found["rejudged"]) == (0.0, 0.0)
    assert found["groups_per_hour"] > 0
