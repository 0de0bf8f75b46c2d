"""One rank of a learner without streams: `python -m tests.service.one_rank <artifacts> <orders.json>`.

The first rank trains and publishes the batches of the file, by sharding and in order, writes what became of each to
`report.json` next to it, and forgets its learner before a batch that says so; the others follow. Before each version the disk is
full once.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any, cast

import torch

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.parallel.ranks import Ranks, Sharding
from triforge.errors import TriforgeError
from triforge.store.artifacts import ArtifactStore
from triforge.types import TrainBatch


def lead(trainer: BatchTrainer, store: ArtifactStore, orders: Any) -> list[dict[str, object]]:
    """Work off some orders; returns the metrics of each step, or why it failed."""
    found: list[dict[str, object]] = []
    for order in orders:
        batch = TrainBatch.model_validate_json(json.dumps(order["batch"]))
        if order["forget"]:
            trainer.drop()
        checkpoints = CheckpointStore(store, batch.run_id, batch.role)
        try:
            learner, report = trainer.step(checkpoints, batch, lambda: False)
        except TriforgeError as error:
            trainer.drop()
            found.append({"error": error.detail})
            continue
        for rank in range(2):
            with contextlib.suppress(OSError):
                learner.files()["optimizer"].write(full_disk(store, rank))
                raise AssertionError("the disk was not full")
        checkpoints.publish(learner, batch, report, keep=10)
        trainer.keep(batch, learner)
        found.append(dict(report.metrics))
    trainer.close()
    return found


def full_disk(store: ArtifactStore, rank: int) -> Path:
    """A folder where one rank's file of the optimiser fails in the middle."""
    folder = store.local_path(f"full-{rank}")
    folder.mkdir(exist_ok=True)
    name = f"optimizer-{rank + 1:05d}-of-00002.safetensors"
    with contextlib.suppress(FileExistsError):
        (folder / name).symlink_to("/dev/full")
    return folder


def main() -> None:
    """One process."""
    torch.set_num_threads(1)
    joined, path = Ranks.join(), Path(sys.argv[2])
    store, report = ArtifactStore(sys.argv[1]), {}
    for sharding, orders in json.loads(path.read_text()).items():
        ranks = Ranks(joined.device, joined.mesh, cast(Sharding, sharding))
        trainer = BatchTrainer(store, ranks)
        if ranks.rank == 0:
            report[sharding] = lead(trainer, store, orders)
        else:
            trainer.follow()
    if joined.rank == 0:
        path.with_name("report.json").write_text(json.dumps(report))
    joined.leave()


if __name__ == "__main__":
    main()
