"""The method, the estimator and the scorer of docs/extend.md, as they stand there, in one run: it is judged, trained, and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.one_process import OneProcess
from tests.contract.test_write_your_own import block
from tests.one_process.test_configs import pool_of, run_of
from triforge.config import merge

pytestmark = pytest.mark.timeout(240)


async def test_the_examples_of_a_method_an_estimator_and_a_scorer_play(
    tmp_path: Path, any_text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_method.py").write_text(block("python", begins="from collections.abc"))
    (tmp_path / "my_estimator.py").write_text(block("python", begins="from statistics"))
    (tmp_path / "my_scorer.py").write_text(block("python", begins="from triforge.types"))
    monkeypatch.syspath_prepend(tmp_path)
    estimator = {"estimator": "my_estimator:against_median", "median_scale": 2.0}
    document = merge(run_of("sokoban"), {
        "methods": {"my_method:METHOD": {"floor": 1000.0}},
        "algorithm": {"overrides": estimator},
        "reward": {"kind": "my_scorer:brief"},
    })  # fmt: skip
    models = dict.fromkeys(("policy", "reward", "rewriter"), any_text_model)
    async with OneProcess(tmp_path, models) as deployment:
        made = await deployment.create_pool(pool_of("sokoban"))
        run = await deployment.train(made.id, document)
        steps = deployment.steps(run.id)
    assert (run.status, run.step) == ("stopped", 1), run.reason
    assert "is below 1000.0" in run.reason
    assert steps[-1].metrics["entropy_floor/low"] == 1
