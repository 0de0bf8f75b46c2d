"""A deployment with a model that sees: web pages as screenshots, through every process, to both learners."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from services.trainer.models.tiny_vision import build_tiny_vision_model
from tests.e2e.conftest import Deployment, wait_for
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.messages import GenerateSpec, PoolRequest
from triforge.store.artifacts import ArtifactStore

pytest.importorskip("miniwob", reason="pip install 'triforge[miniwob]'")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="apt-get install chromium chromium-driver",
    ),
]

STEPS, GROUPS, ROLLOUTS = 2, 1, 4
OPTIONS = {"observe": "screenshot", "actions": "computer_use", "browsers": 2}
DOCUMENT = "".join(
    f'[models.{role}]\npath = "{{model}}"\n\n' for role in ("acts", "judges", "rewrites")
)
RUN = {
    "run": {"steps": STEPS, "groups_per_step": GROUPS, "eval_every": 0, "step_deadline_s": 200.0},
    "models": {
        "acts": {"max_new_tokens": 4},
        # held to its two words and hot: a random judge votes both ways, so there is always something to learn
        "judges": {"max_new_tokens": 2, "temperature": 5.0, "regex": r" ?\\boxed\{-?1\}"},
    },
    "env_adapter": {
        "rollouts": ROLLOUTS, "max_steps": 2, "episode_deadline_s": 120.0, "options": OPTIONS,
    },
    "reward": {"votes": 2, "prompt": "terse"},
    "adaptation": {"controller": "none"},
    "trainer": {"policy": {"learning_rate": 1e-3}, "reward": {"learning_rate": 1e-3}},
    "algorithm": {"overrides": {"reward_band": "none"}},
}  # fmt: skip


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    words = ("click", "left", "right", "page", ";", ">", "?", r"\boxed{1}", r"\boxed{-1}")
    model = build_tiny_vision_model(tmp_path / "model", words, seed=4)
    (tmp_path / "run.toml").write_text(DOCUMENT.format(model=model))
    (tmp_path / "state").mkdir()
    return Deployment(tmp_path / "run.toml", tmp_path / "state")


async def test_two_steps_are_trained_on_screenshots_of_web_pages(
    deployment: Deployment, tmp_path: Path
) -> None:
    try:
        deployment.start()
        settings = deployment.settings()
        pools, trainer = (
            EnvAdapterClient(settings.env_adapter_url),
            TrainerClient(settings.trainer_url),
        )
        try:
            pool = await pools.create_pool(
                PoolRequest(
                    name="screens", environment="miniwob", options=OPTIONS,
                    generate=GenerateSpec(count=2, heldout=0, seed=1, options={"tasks": ["click-button"]}),
                )
            )  # fmt: skip
            asked = await trainer.submit(pool.id, name="screens", config=RUN)
            run = await wait_for(settings, asked.id, within_s=240)
            assert (run.status, run.step) == ("finished", STEPS), run.reason
            steps = [step.metrics for step in await trainer.steps(run.id)][1:]
            await trainer.export(run.id, tmp_path / "run.parquet")
        finally:
            await pools.close()
            await trainer.close()
        for metrics in steps:
            assert metrics["infrastructure_failures"] == 0
            for role in ("policy", "reward"):
                assert metrics[f"{role}/logprob_mismatch_max"] < 1e-4
        records = pq.read_table(tmp_path / "run.parquet").to_pylist()
        assert len(records) >= STEPS * GROUPS * ROLLOUTS
        store = ArtifactStore(settings.artifacts_url)
        for record in records:
            assert len(record["images"]) == len(record["next_images"]) == 1
            assert record["judge_images"] == record["images"] + record["next_images"]
            for image in record["judge_images"]:
                assert store.exists(f"images/{image.removeprefix('sha256:')}.png")
    finally:
        deployment.close()
