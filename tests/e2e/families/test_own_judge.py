"""A judge of its own in a deployment's own processes: the mover's steps are judged by a further model, the planner's by the reward model.

Once each model has an engine, and once all three are adapters over the base of one.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Deployment
from tests.e2e.families.test_families import SMALL, TINY, _play, pool_of, run_of
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, merge

pytestmark = pytest.mark.timeout(300)

MODELS = ("policy", "reward", "arbiter")
ARBITER: dict[str, Any] = {
    **SMALL["models"]["reward"],
    "judges": ["mover"],
    "regex": r"So \\boxed\{-?1\}",  # what the reward model is held to, and a word more
    "max_new_tokens": 16,
}
ONE_ENGINE = 'engines_of = "policy"'
ADAPTERS = "[trainer.policy]\nlora_rank = 4\n[trainer.reward]\nlora_rank = 4\n"
DOCUMENT = """
[models.policy]
path = "{model}"

[models.reward]
path = "{model}"
{engine}

[models.arbiter]
path = "{model}"
judges = ["mover"]
{engine}

[adaptation]
controller = "none"

{trainer}
"""


async def _two_steps(settings: Settings, record: Path) -> None:
    """Pass if two steps train all three models, and each judge was asked about its own agent alone."""
    config = merge(run_of("plan_path"), TINY["methods/at_grpo"]["run"])
    config["models"]["arbiter"] = ARBITER
    config["algorithm"] = {"preset": "rlanything", "overrides": {"reward_band": "none"}}
    run, steps = await _play(settings, pool_of("plan_path"), config)
    assert (run.status, run.step) == ("finished", 2), run.reason
    for before, after in pairwise(steps):
        assert after.metrics["rows/arbiter"] > 0
        assert after.further["arbiter"] == before.further["arbiter"] + 1
        assert after.reward_version == before.reward_version + (after.metrics["rows/reward"] > 0)
    trainer = TrainerClient(settings.trainer_url)
    try:
        await trainer.export(run.id, record)
    finally:
        await trainer.close()
    asked = {
        (row["agent_id"], vote["text"].startswith("So "))
        for row in pq.read_table(record).to_pylist()
        for vote in row["votes"]
    }
    assert asked == {("planner", False), ("mover", True)}


@pytest.mark.parametrize("shared", [False, True])
async def test_two_judges_are_asked_and_trained_each_about_its_own_agent(
    tmp_path: Path, any_text_model: Path, shared: bool
) -> None:
    given = {"engine": ONE_ENGINE * shared, "trainer": ADAPTERS * shared}
    (tmp_path / "run.toml").write_text(DOCUMENT.format(model=any_text_model, **given))
    (tmp_path / "state").mkdir()
    deployment = Deployment(tmp_path / "run.toml", tmp_path / "state")
    try:
        deployment.start()
        engines = {name for name in deployment.pids() if name.startswith("engine-")}
        assert engines == {f"engine-{role}" for role in (MODELS[:1] if shared else MODELS)}
        assert {f"learner-{role}" for role in MODELS} <= deployment.pids().keys()
        await _two_steps(deployment.settings(), tmp_path / "record.parquet")
    finally:
        deployment.close()
