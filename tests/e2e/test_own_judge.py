"""A further model judges the mover's steps, the reward model those of the planner: as adapters on one engine."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Deployment, wait_for
from tests.one_process.conftest import any_text_model as any_text_model
from tests.one_process.test_configs import SMALL, TINY, pool_of, run_of
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import merge
from triforge.types import RunState, RunStep

pytestmark = pytest.mark.timeout(300)

MODELS = ("policy", "reward", "arbiter")
ARBITER: dict[str, Any] = {
    **SMALL["models"]["reward"],
    "judges": ["mover"],
    "regex": r"So \\boxed\{-?1\}",  # what the reward model is held to, and a word more
    "max_new_tokens": 16,
}
DOCUMENT = """
[models.policy]
path = "{model}"

[models.reward]
path = "{model}"
engines_of = "policy"

[models.arbiter]
path = "{model}"
judges = ["mover"]
engines_of = "policy"

[adaptation]
controller = "none"

[trainer.policy]
lora_rank = 4
[trainer.reward]
lora_rank = 4
"""


def two_judges() -> dict[str, Any]:
    """The document of a run whose mover has a judge of its own."""
    config = merge(run_of("plan_path"), TINY["methods/at_grpo"]["run"])
    config["models"]["arbiter"] = ARBITER
    config["algorithm"] = {"preset": "rlanything", "overrides": {"reward_band": "none"}}
    return config


def expect_both_judges(run: RunState, steps: list[RunStep], records: list[dict[str, Any]]) -> None:
    """Pass if two steps trained all three models, and each judge was asked about its own agent alone."""
    assert (run.status, run.step) == ("finished", 2), run.reason
    for before, after in pairwise(steps):
        assert after.metrics["rows/arbiter"] > 0
        assert after.further["arbiter"] == before.further["arbiter"] + 1
        assert after.reward_version == before.reward_version + (after.metrics["rows/reward"] > 0)
    answered = {
        (row["agent_id"], vote["text"].startswith("So "))
        for row in records
        for vote in row["votes"]
    }
    assert answered == {("planner", False), ("mover", True)}


async def test_three_models_are_adapters_on_one_engine(
    tmp_path: Path, any_text_model: Path
) -> None:
    (tmp_path / "run.toml").write_text(DOCUMENT.format(model=any_text_model))
    (tmp_path / "state").mkdir()
    deployment = Deployment(tmp_path / "run.toml", tmp_path / "state")
    try:
        deployment.start()
        engines = {name for name in deployment.pids() if name.startswith("engine-")}
        assert engines == {"engine-policy"}
        assert {f"learner-{role}" for role in MODELS} <= deployment.pids().keys()
        settings = deployment.settings()
        pools = EnvAdapterClient(settings.env_adapter_url)
        trainer = TrainerClient(settings.trainer_url)
        try:
            pool = await pools.create_pool(pool_of("plan_path"))
            run = await trainer.submit(pool.id, name="judges", config=two_judges())
            run = await wait_for(settings, run.id, within_s=200.0)
            steps = await trainer.steps(run.id)
            await trainer.export(run.id, tmp_path / "record.parquet")
        finally:
            await pools.close()
            await trainer.close()
        expect_both_judges(run, steps, pq.read_table(tmp_path / "record.parquet").to_pylist())
    finally:
        deployment.close()
