"""Judges that are shown what a task knows, through the whole loop, and judges that compare rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.one_process import OneProcess
from tests.one_process.test_configs import pool_of, run_of
from triforge.config import merge
from triforge.errors import ConfigError

pytestmark = pytest.mark.timeout(240)

STILL = {"adaptation": {"controller": "none"}}
SHOWN = {"reward": {"shows": ["reference", "episode"]}}
POINTS = {"reward": {"shows": ["rubric"]}}
PAIRS = {"reward": {"kind": "pairwise", "shows": ["reference"], "votes": 1}}


@pytest.mark.parametrize(
    ("changed", "trains"), [(SHOWN, True), (PAIRS, False)], ids=["shown", "pairs"]
)
async def test_a_run_with_a_reference_in_sight(
    changed: dict[str, Any], trains: bool, tmp_path: Path, any_text_model: Path
) -> None:
    roles = ("policy", "reward", "rewriter")
    document = merge(merge(run_of("household"), STILL), changed)
    if not trains:
        document["algorithm"] = {"preset": "pairwise"}
    async with OneProcess(tmp_path, dict.fromkeys(roles, any_text_model)) as deployment:
        pool = await deployment.create_pool(pool_of("household"))
        with pytest.raises(ConfigError, match=r"reward\.shows: given 'rubric'"):
            await deployment.train(pool.id, merge(document, POINTS), name="none")
        run = await deployment.train(pool.id, document, name="shown")
        steps = deployment.steps(run.id)
    assert run.status == "finished", run.reason
    assert (steps[-1].reward_version > steps[0].reward_version) == trains
    assert steps[-1].policy_version > steps[0].policy_version
