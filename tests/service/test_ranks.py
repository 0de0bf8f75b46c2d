"""Two ranks that train one model come to the weights that one rank comes to, and go on from each other's checkpoints."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demo.models.tiny_models import TinyShape, build_tiny_model, build_tiny_vision_model
from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.parallel.ranks import Ranks, Sharding
from services.trainer.learner.weights.tensors import stored
from tests.batches import train_batch
from tests.warm_processes import WarmProcess
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.store.rows import write_rows
from triforge.store.tensor_files import weight_files
from triforge.store.weight_folders import version_name
from triforge.supervisor.ports import free_port
from triforge.testing.pictures import png
from triforge.types import ImageRef, PlacedImage, TrainBatch, TrainRow

BASE = 2
SHARDINGS: tuple[Sharding, ...] = ("full", "replicate")
OPTIONS = {"learning_rate": 1e-3, "updates_per_step": 2, "token_budget": 60}
WIDE = {**OPTIONS, "token_budget": 1000}
CRITIC = {"estimator": "gae", "gamma": 0.9, "value_clip": 0.5, "whiten": True}
NARROW = {**OPTIONS, "publish_dtype": "bfloat16"}
ADAPTER = {**OPTIONS, "lora_rank": 2, "lora_alpha": 4}


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


PAIRS = {"job": "dpo_pair", "kl_beta": 0.0}
AUXILIARY = {"envrl": {"weights": {"sp": 0.3, "id": 0.2}}}


def pairs_of(step: int) -> list[TrainRow]:
    """The same rows as trajectories of two rows, good ones and bad ones of each of three tasks."""
    return [
        row.model_copy(
            update={
                "key": f"u{n // 2}/{n % 2}", "task_id": f"t{n // 4}", "ends": (), "rewards": (),
                "advantages": (1.0 if (n // 2) % 2 else -1.0,) * len(row.ids),
            }
        )
        for n, row in enumerate(rows_of(step))
    ]  # fmt: skip


def with_items(step: int) -> list[TrainRow]:
    """The same rows with five further rows of each of two objectives."""
    rows = rows_of(step)
    for objective, other in (("sp", 40), ("id", 60)):
        for row in rows_of(step + other)[:5]:
            update = {"objective": objective, "key": f"{objective}-{row.key}"}
            weights = tuple(0.2 / (len(row.ids) - 1) * bool(w) for w in row.weights)
            rows.append(
                row.model_copy(update=update | {"weights": weights, "ends": (), "rewards": ()})
            )
    return rows


def shown(images: list[ImageRef], blind: int) -> list[TrainRow]:
    """Five rows with one or two images in front; the first `blind` of them have none.

    All are good ones: what was sampled with a higher probability than now has a gradient only then.
    """
    user, assistant, begin, stop, pad, word = 4, 5, 6, 7, 8, 10
    rows = []
    for n in range(5):
        ids, places = [user], []
        for image in images[: 0 if n < blind else 1 + n % 2]:
            places.append(PlacedImage(image=image, start=len(ids) + 1, end=len(ids) + 7))
            ids += [begin, *[pad] * 6, stop]
        ids += [assistant, *[word] * (n + 2)]
        generated = n + 2
        count = len(ids)
        rows.append(
            TrainRow(
                key=f"r{n}", ids=tuple(ids), logprobs=(-1.0,) * count, task_id="t",
                advantages=(float(n + 1),) * count, versions=(BASE,) * count, images=tuple(places),
                weights=(0.0,) * (count - generated) + (1 / 5 / generated,) * generated,
            )
        )  # fmt: skip
    return rows


class Scene:
    """A model, and runs over it in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: dict[str, list[dict[str, float]]] = {}
        self.two: dict[str, list[dict[str, Any]]] = {}
        shape = TinyShape(hidden=16, layers=2, heads=2, max_positions=64)
        self.model = build_tiny_model(folder / "model", ["a", "b", "c"], shape=shape)
        self.seeing = build_tiny_vision_model(folder / "seeing", ("a", "b", "c"), seed=2)
        self.store = ArtifactStore(str(folder / "artifacts"))
        images = ImageStore(self.store)
        self.images = [images.keep(png(60, 90, colour=(n, 0, 0))) for n in (1, 99)]

    def batch(
        self,
        run: str,
        step: int,
        options: dict[str, Any],
        rule: dict[str, Any] | None = None,
        *,
        rows: list[TrainRow] | None = None,
        model: Path | None = None,
        **settings: Any,
    ) -> TrainBatch:
        rows = rows or rows_of(step)
        uri = write_rows(self.store, f"runs/{run}/batches/{step:05d}.parquet", rows)
        return train_batch(
            model or self.model, batch_id=f"{run}-{step:05d}", run_id=run, step=step, uri=uri,
            version=BASE + step - 1, num_rows=len(rows), base=BASE, learner=options, **(rule or {}), **settings,
        )  # fmt: skip

    def alone(self, *batches: TrainBatch) -> None:
        """Train in this process."""
        trainer = BatchTrainer(self.store, Ranks(torch.device("cpu")))
        for batch in batches:
            checkpoints = CheckpointStore(self.store, batch.run_id, batch.role)
            learner, report = trainer.step(checkpoints, batch, lambda: False)
            checkpoints.publish(learner, batch, report, keep=10)
            trainer.keep(batch, learner)
            self.reports.setdefault(batch.run_id, []).append(dict(report.metrics))

    def together(self, orders: dict[str, list[tuple[TrainBatch, bool]]]) -> None:
        """Train in two processes, in each way of sharding; whether the learner in memory is forgotten before a batch."""
        path = self.folder / "orders.json"
        given = {
            sharding: [{"batch": b.model_dump(mode="json"), "forget": forget} for b, forget in own]
            for sharding, own in orders.items()
        }
        path.write_text(json.dumps(given))
        port = str(free_port())
        command = ("tests.service.one_rank", self.store.root, str(path))
        ranks = []
        with ExitStack() as stack:
            for rank in ("0", "1"):
                group = {
                    "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                }  # fmt: skip
                log = self.folder / f"rank-{rank}.log"
                ranks.append(stack.enter_context(WarmProcess(*command, env=group, log=log)))
            self.alone_meanwhile()
            for rank in ranks:
                assert rank.wait(240) == 0, rank.output
        self.two = json.loads((self.folder / "report.json").read_text())

    def alone_meanwhile(self) -> None:
        """Train in one rank, while the two begin."""
        self.alone(*[self.batch("one", step, OPTIONS) for step in (1, 2, 3, 4)])
        self.alone(*[self.batch("lora-one", step, ADAPTER) for step in (1, 2)])
        self.alone(*[self.batch("critic-one", step, OPTIONS, CRITIC) for step in (1, 2)])
        self.alone(
            *[self.batch("pairs-one", s, OPTIONS, rows=pairs_of(s), **PAIRS) for s in (1, 2)]
        )
        self.alone(self.batch("items-one", 1, OPTIONS, rows=with_items(1), **AUXILIARY))
        for blind in (0, 2):
            self.alone(images_batch(self, f"seen-one-{blind}", blind))

    def tensors(self, run: str, step: int, file: str, kind: str) -> dict[str, torch.Tensor]:
        name = version_name(BASE + step)
        (folder,) = self.store.local_path(f"{kind}/{run}/policy").glob(f"{name}*")
        return stored(folder)[file]

    def apart(self, one: str, other: str, step: int, file: str, kind: str = "weights") -> float:
        """The largest difference between two runs' tensors after a step."""
        a, b = (self.tensors(run, step, file, kind) for run in (one, other))
        assert a.keys() == b.keys()
        return max(float((a[name] - b[name]).abs().max()) for name in a)

    def gradients_apart(
        self, one: str, other: str, step: int = 1, file: str = "optimizer"
    ) -> float:
        """The largest difference of two runs' gradients (Adam's means of them), as a share of the largest gradient."""
        a, b = (self.tensors(run, step, file, "checkpoints") for run in (one, other))
        assert a.keys() == b.keys()
        means = [name for name in a if name.endswith(".exp_avg")]
        largest = max(float(a[name].abs().max()) for name in means)
        return max(float((a[name] - b[name]).abs().max()) for name in means) / largest

    def alike(
        self,
        one: str,
        other: str,
        step: int = 1,
        *,
        weights: str = "model",
        kind: str = "weights",
        optimizer: str = "optimizer",
    ) -> bool:
        """Whether two runs had the same gradients up to a step.

        Some gradients are hardly more than rounding, and Adam makes steps of any gradient: weights differ by up to 2e-5 with the
        kind of CPU and the number of threads. They are held to a tenth of one update.
        """
        same = self.gradients_apart(one, other, step, optimizer) < 1e-5
        return same and self.apart(one, other, step, weights, kind) < 0.1 * OPTIONS["learning_rate"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """With what one rank comes to, and two."""
    scene = Scene(tmp_path_factory.mktemp("ranks"))
    for sharding in SHARDINGS:
        scene.alone(scene.batch(f"{sharding}-fewer", 1, OPTIONS))
    scene.together({sharding: orders_of(scene, sharding) for sharding in SHARDINGS})
    return scene


def orders_of(scene: Scene, s: str) -> list[tuple[TrainBatch, bool]]:
    bad = scene.batch(f"{s}-bad", 1, OPTIONS, rows=rows_of(1, vocabulary=4000))
    return [
        (scene.batch(f"{s}-two", 1, WIDE), False),  # one pass a rank where one took several
        (scene.batch(f"{s}-two", 2, WIDE), False),
        (bad, False),
        (scene.batch(f"{s}-two", 3, OPTIONS), False),  # from the checkpoint: a failure forgets
        (scene.batch(f"{s}-fewer", 2, OPTIONS), True),  # begun by one rank
        (scene.batch(f"{s}-lora", 1, ADAPTER), False),
        (scene.batch(f"{s}-lora", 2, ADAPTER), True),
        (scene.batch(f"{s}-critic", 1, WIDE, CRITIC), False),
        (scene.batch(f"{s}-critic", 2, OPTIONS, CRITIC), True),
        (scene.batch(f"{s}-pairs", 1, WIDE, rows=pairs_of(1), **PAIRS), False),
        (scene.batch(f"{s}-pairs", 2, OPTIONS, rows=pairs_of(2), **PAIRS), False),
        (scene.batch(f"{s}-items", 1, OPTIONS, rows=with_items(1), **AUXILIARY), False),
        (scene.batch(f"{s}-narrow", 1, NARROW), False),
        (scene.batch(f"{s}-narrow", 2, NARROW), True),
        (images_batch(scene, f"{s}-seen-0", 0), False),
        (images_batch(scene, f"{s}-seen-2", 2, WIDE), False),
    ]


def images_batch(
    scene: Scene, run: str, blind: int, options: dict[str, Any] = OPTIONS
) -> TrainBatch:
    return scene.batch(run, 1, options, rows=shown(scene.images, blind), model=scene.seeing)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_two_ranks_come_to_the_weights_of_one_and_share_its_checkpoints(
    scene: Scene, sharding: Sharding
) -> None:
    s, two = sharding, scene.two[sharding]
    assert "vocabulary" in two[2]["error"]
    for step in (1, 2, 3):
        assert scene.alike("one", f"{s}-two", step)
    assert scene.alike("one", f"{s}-fewer", 2)
    assert scene.alike("lora-one", f"{s}-lora", 2, weights="adapter_model")
    assert scene.alike("critic-one", f"{s}-critic", 2)
    critic = {"weights": "critic", "optimizer": "critic_optimizer"}
    assert scene.alike("critic-one", f"{s}-critic", 2, **critic, kind="checkpoints")
    assert scene.alike("pairs-one", f"{s}-pairs", 2)
    assert scene.alike("items-one", f"{s}-items")
    assert scene.alike("seen-one-0", f"{s}-seen-0")
    if sharding == "replicate":
        assert scene.alike("seen-one-2", f"{s}-seen-2")
    else:  # ranks that shard a model meet in each of its layers
        assert "expected all of one kind with 2 ranks" in two[-1]["error"]
    one = scene.reports["one"]
    for name in ("loss", "entropy", "kl_k3", "grad_norm", "ratio_mean", "clip_share", "tokens"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-4, abs=1e-6), name
    items, pairs = scene.reports["items-one"][0], scene.reports["pairs-one"][0]
    for name in ("aux/sp/nll", "aux/id/loss"):
        assert two[11][name] == pytest.approx(items[name], rel=1e-4), name
    assert two[9]["pairs_right"] == pairs["pairs_right"]

    # One rank goes on from what two have left.
    scene.alone(scene.batch(f"{s}-two", 4, OPTIONS))
    assert scene.alike("one", f"{s}-two", 4)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_each_rank_writes_a_part_of_a_version_that_rounds_what_the_checkpoint_holds(
    scene: Scene, sharding: Sharding
) -> None:
    run = f"{sharding}-narrow"
    folder = scene.store.local_path(f"weights/{run}/policy") / version_name(BASE + 2)
    parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert [path.name for path in weight_files(folder)] == parts
    sizes = [(folder / part).stat().st_size for part in parts]
    assert max(sizes) < 2 * min(sizes)
    held = scene.tensors(run, 2, "weights", "checkpoints")
    rounded = scene.tensors(run, 2, "model", "weights")
    assert held.keys() == rounded.keys()
    assert all(torch.equal(rounded[name], held[name].bfloat16()) for name in held)
    assert any(not torch.equal(rounded[name].float(), held[name]) for name in held)
    # Taken up from the checkpoint, not from what was rounded.
    assert scene.gradients_apart("one", run, 2) < 1e-5
    wanted = scene.tensors("one", 2, "model", "weights")
    apart = max(float((held[n] - wanted[n]).abs().max()) for n in held)
    assert apart < 0.1 * OPTIONS["learning_rate"]


def test_what_is_trained_on_matters(scene: Scene) -> None:
    runs = ("one", "critic-one", "pairs-one", "items-one")
    for n, run in enumerate(runs):
        for other in runs[:n]:
            assert scene.gradients_apart(run, other) > 1e-2
