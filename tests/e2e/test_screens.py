"""A deployment with a model that sees: screenshots of web pages and of machines, through every process, to both learners."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from demo.models.tiny_models import build_tiny_vision_model
from tests.e2e.conftest import Deployment, wait_for
from tests.unit.environments.fake_control_server import FakeControlServer
from triforge.clients.env_adapter import EnvAdapterClient
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings, merge, read_document
from triforge.store.artifacts import ArtifactStore
from triforge.types import GenerateSpec, PoolRequest

pytestmark = pytest.mark.timeout(300)
CONFIGS = Path(__file__).parents[2] / "configs"

STEPS, GROUPS, ROLLOUTS = 2, 1, 4
OPTIONS = {"observe": "screenshot", "actions": "computer_use", "browsers": 2}
DOCUMENT = '[adaptation]\ncontroller = "none"\n\n' + "".join(
    f'[models.{role}]\npath = "{{model}}"\n\n' for role in ("policy", "reward")
)
RUN: dict[str, Any] = {
    "run": {"steps": STEPS, "groups_per_step": GROUPS, "eval_every": 0, "step_deadline_s": 200.0},
    "models": {
        "policy": {"max_new_tokens": 4},
        # held to its two words and hot: a random judge votes both ways, so there is always something to learn
        "reward": {"max_new_tokens": 2, "temperature": 5.0, "regex": r" ?\\boxed\{-?1\}"},
    },
    "env_adapter": {
        "rollouts": ROLLOUTS, "max_steps": 2, "episode_deadline_s": 120.0, "options": OPTIONS,
    },
    "reward": {"votes": 2, "prompt": "terse"},
    "adaptation": {"controller": "none"},
    "trainer": {"policy": {"learning_rate": 1e-3}, "reward": {"learning_rate": 1e-3}},
    "algorithm": {"overrides": {"reward_band": "none"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The addresses of one deployment that plays all runs here."""
    folder = tmp_path_factory.mktemp("screens")
    words = ("click", "left", "right", "page", ";", ">", "?", r"\boxed{1}", r"\boxed{-1}")
    model = build_tiny_vision_model(folder / "model", words, seed=4)
    (folder / "run.toml").write_text(DOCUMENT.format(model=model))
    (folder / "state").mkdir()
    deployment = Deployment(folder / "run.toml", folder / "state")
    try:
        deployment.start()
        yield deployment.settings()
    finally:
        deployment.close()


async def train(
    settings: Settings, asked: PoolRequest, config: dict[str, Any], folder: Path
) -> list[dict[str, Any]]:
    """Play a run to its end; what it measured is sound, and the records are given back."""
    pools, trainer = EnvAdapterClient(settings.env_adapter_url), TrainerClient(settings.trainer_url)
    try:
        pool = await pools.create_pool(asked)
        submitted = await trainer.submit(pool.id, name=asked.name, config=config)
        run = await wait_for(settings, submitted.id, within_s=240)
        assert (run.status, run.step) == ("finished", STEPS), run.reason
        steps = [step.metrics for step in await trainer.steps(run.id)][1:]
        await trainer.export(run.id, folder / "run.parquet")
    finally:
        await pools.close()
        await trainer.close()
    for metrics in steps:
        assert metrics["infrastructure_failures"] == 0
        for role in ("policy", "reward"):
            assert not metrics[f"rows/{role}"] or metrics[f"{role}/logprob_mismatch_max"] < 1e-4
        assert metrics["rows/policy"]
    records: list[dict[str, Any]] = pq.read_table(folder / "run.parquet").to_pylist()
    assert len(records) >= STEPS * GROUPS * ROLLOUTS
    return records


def expect_images(settings: Settings, records: list[dict[str, Any]]) -> None:
    """Each step has the screen before and after, the judge saw both, all are kept, and both models learned to see."""
    store = ArtifactStore(settings.artifacts_url)
    for role in ("policy", "reward"):
        folder = store.local_path(f"weights/{records[0]['run_id']}/{role}")
        first, *_, last = map(load_file, sorted(folder.glob("v*/model.safetensors")))
        for part in ("language_model", "visual"):
            assert any((first[name] != last[name]).any() for name in first if part in name)
    for record in records:
        assert len(record["images"]) == len(record["next_images"]) == 1
        assert record["judge_images"] == record["images"] + record["next_images"]
        for image in record["judge_images"]:
            assert store.exists(f"images/{image.removeprefix('sha256:')}.png")


@pytest.mark.skipif(
    not importlib.util.find_spec("miniwob"), reason="pip install -c constraints.txt -e '.[miniwob]'"
)
@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="apt-get install chromium chromium-driver",
)
async def test_two_steps_are_trained_on_screenshots_of_web_pages(
    settings: Settings, tmp_path: Path
) -> None:
    pool = PoolRequest(
        name="screens", environment="miniwob", options=OPTIONS,
        generate=GenerateSpec(count=2, heldout=0, seed=1, options={"tasks": ["click-button"]}),
    )  # fmt: skip
    expect_images(settings, await train(settings, pool, RUN, tmp_path))


async def test_two_steps_are_trained_on_pictures_against_goals(
    settings: Settings, tmp_path: Path
) -> None:
    """methods/vlm_rl/vlm_rl.toml as it is but for its sizes: no judge votes, every step has a score, the critic learns."""
    body = json.loads((CONFIGS / "pools" / "vlm_rl.json").read_text())
    body["generate"] |= {"count": 2, "heldout": 0}
    document = read_document(CONFIGS.parent / "methods" / "vlm_rl" / "vlm_rl.toml")
    for role in document["models"].values():
        role.pop("path")
    small = {name: RUN[name] for name in ("run", "models", "trainer")}
    small["env_adapter"] = {"rollouts": ROLLOUTS, "max_steps": 2}
    asked = PoolRequest.model_validate({**body, "name": "pictures"})
    records = await train(settings, asked, merge(document, small), tmp_path)
    for record in records:
        assert len(record["images"]) == len(record["next_images"]) == 1
        assert record["votes"] == []
        assert record["step_score"] == record["reward"]
        if not record["action_valid"]:
            assert record["step_score"] in (0.0, -1.0)
    assert {record["step_score"] for record in records if record["step_index"] == 1} == {-1.0}


@pytest.fixture
def machines() -> Iterator[list[FakeControlServer]]:
    made = [FakeControlServer() for _ in range(2)]
    yield made
    for machine in made:
        machine.close()


async def test_two_steps_are_trained_from_osworlds_config_on_machines_that_pretend(
    settings: Settings, machines: list[FakeControlServer], tmp_path: Path
) -> None:
    """The one config that tests/one_process cannot play: it needs machines, and a model that sees."""
    options = {"machines": [machine.url for machine in machines], "pause_s": 0.0}
    body = json.loads((CONFIGS / "pools" / "osworld.json").read_text())
    document = read_document(CONFIGS / "osworld.toml")
    for role in document["models"].values():
        role.pop("path")
    config = merge(document, {**RUN, "env_adapter": {**RUN["env_adapter"], "options": options}})
    asked = PoolRequest.model_validate({**body, "name": "machines", "options": options})
    expect_images(settings, await train(settings, asked, config, tmp_path))
    assert all(machine.shown for machine in machines)
