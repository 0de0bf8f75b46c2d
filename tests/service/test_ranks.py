"""Two ranks that train one model come to the weights that one rank comes to, and go on from each other's checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.trainer.learner.checkpoint import Shelf
from services.trainer.learner.crew import Crew
from services.trainer.models.tiny import TinyShape, build_tiny_model
from services.trainer.weights.folders import version_name
from services.trainer.weights.sharding import Ranks
from services.trainer.weights.tensors import load_tensors
from triforge.messages import TrainBatch, TrainRow
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.supervisor.layout import free_port

BASE = 2
KNOBS = {"learning_rate": 1e-3, "updates_per_step": 2, "token_budget": 60}
WIDE = {**KNOBS, "token_budget": 1000}
CRITIC = {"estimator": "gae", "gamma": 0.9, "value_clip": 0.5, "whiten": True}
ADAPTER = {**KNOBS, "lora_rank": 2, "lora_alpha": 4}


def rows_of(step: int, *, vocabulary: int = 9) -> list[TrainRow]:
    """Eleven rows of 5 to 30 tokens; some begin alike."""
    draw = np.random.default_rng(step)
    prompt = draw.integers(6, vocabulary, 18)
    rows = []
    for n in range(11):
        tail = draw.integers(6, vocabulary, 5 + n)
        ids = np.concatenate([prompt, tail]) if n % 2 else tail
        count = len(ids)
        rows.append(
            TrainRow(
                key=f"r{n}", ids=tuple(ids.tolist()), logprobs=(-1.0,) * count, task_id="t",
                advantages=tuple(draw.normal(size=count).tolist()), versions=(BASE,) * count,
                weights=(0.0, *[1 / 11 / (count - 1)] * (count - 1)),
                rewards=(*[0.0] * (count - 1), float(n % 3)), ends=(count - 1,),
            )
        )  # fmt: skip
    return rows


class Scene:
    """A model, and runs over it in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shape = TinyShape(hidden=16, layers=2, heads=2, max_positions=64)
        self.model = build_tiny_model(folder / "model", ["a", "b", "c"], shape=shape)
        self.store = ArtifactStore(str(folder / "artifacts"))

    def batch(
        self,
        run: str,
        step: int,
        knobs: dict[str, Any],
        rule: dict[str, Any] | None = None,
        **kind: int,
    ) -> TrainBatch:
        rows = rows_of(step, **kind)
        uri = write_rows(self.store, f"runs/{run}/batches/{step:05d}.parquet", rows)
        return TrainBatch.model_validate(
            {
                "batch_id": f"{run}-{step:05d}", "run_id": run, "role": "acts", "step": step, "uri": uri,
                "version": BASE + step - 1, "num_rows": len(rows), "num_tokens": 0,
                "settings": {"model_path": str(self.model), "base_version": BASE, "learner": knobs, "critic": rule},
            }
        )  # fmt: skip

    def alone(self, *batches: TrainBatch) -> list[dict[str, float]]:
        """Train in this process."""
        crew, told = Crew(self.store, Ranks(torch.device("cpu"))), []
        for batch in batches:
            shelf = Shelf(self.store, batch.run_id, batch.role)
            learner, report = crew.train(shelf, batch, lambda: False)
            shelf.publish(learner, batch, report, keep=10)
            crew.keep(batch, learner)
            told.append(report.metrics)
        return told

    def together(self, *orders: tuple[TrainBatch, bool]) -> list[dict[str, Any]]:
        """Train in two processes; an order is a batch, and whether the learner in memory is forgotten before it."""
        path = self.folder / "orders.json"
        path.write_text(
            json.dumps([{"batch": b.model_dump(mode="json"), "forget": f} for b, f in orders])
        )
        port = str(free_port())
        ranks = []
        for rank in ("0", "1"):
            group = {
                "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            command = [sys.executable, "-m", "tests.service.one_rank", self.store.root, str(path)]
            ranks.append(
                subprocess.Popen(command, env={**os.environ, **group}, stderr=subprocess.PIPE)
            )
        try:
            said = [rank.communicate(timeout=240)[1].decode() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
        found: list[dict[str, Any]] = json.loads((self.folder / "report.json").read_text())
        return found

    def tensors(self, run: str, step: int, file: str, shelf: str) -> dict[str, torch.Tensor]:
        name = version_name(BASE + step)
        return load_tensors(Path(self.store.uri(f"{shelf}/{run}/acts/{name}/{file}")))

    def apart(self, one: str, other: str, step: int, file: str, shelf: str = "weights") -> float:
        """The largest difference between two runs' tensors after a step."""
        a, b = (self.tensors(run, step, file, shelf) for run in (one, other))
        assert a.keys() == b.keys()
        return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.timeout(400)
def test_two_ranks_come_to_the_weights_of_one_and_share_its_checkpoints(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    one = scene.alone(
        *[scene.batch("one", step, KNOBS) for step in (1, 2, 3)],
    )
    scene.alone(*[scene.batch("fewer", 1, KNOBS)])
    scene.alone(*[scene.batch("lora-one", step, ADAPTER) for step in (1, 2)])
    scene.alone(*[scene.batch("critic-one", step, KNOBS, CRITIC) for step in (1, 2)])
    bad = scene.batch("bad", 1, KNOBS, vocabulary=4000)

    two = scene.together(
        (scene.batch("two", 1, WIDE), False),  # one pass a rank where one rank alone took several
        (scene.batch("two", 2, WIDE), False),
        (bad, False),
        (scene.batch("two", 3, KNOBS), False),  # from the checkpoint: a failure forgets the learner
        (scene.batch("fewer", 2, KNOBS), True),  # begun by one rank
        (scene.batch("lora-two", 1, ADAPTER), False),
        (scene.batch("lora-two", 2, ADAPTER), True),
        (scene.batch("critic-two", 1, WIDE, CRITIC), False),
        (scene.batch("critic-two", 2, KNOBS, CRITIC), True),
    )
    assert "vocabulary" in two[2]["error"]
    for step in (1, 2, 3):
        assert scene.apart("one", "two", step, "model.safetensors") < 1e-5
        assert scene.apart("one", "two", step, "optimizer.safetensors", "checkpoints") < 1e-5
    assert scene.apart("one", "fewer", 2, "model.safetensors") < 1e-5
    assert scene.apart("lora-one", "lora-two", 2, "adapter_model.safetensors") < 1e-5
    assert scene.apart("critic-one", "critic-two", 2, "model.safetensors") < 1e-5
    for file in ("critic.safetensors", "critic_optimizer.safetensors"):
        assert scene.apart("critic-one", "critic-two", 2, file, "checkpoints") < 1e-5
    assert scene.apart("critic-one", "one", 2, "model.safetensors") > 1e-4  # other advantages
    for name in ("loss", "entropy", "kl_k3", "grad_norm", "ratio_mean", "clip_share", "tokens"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-4, abs=1e-6), name

    # One rank goes on from what two have left.
    scene.alone(scene.batch("one", 4, KNOBS))
    scene.alone(scene.batch("two", 4, KNOBS))
    assert scene.apart("one", "two", 4, "model.safetensors") < 1e-5
