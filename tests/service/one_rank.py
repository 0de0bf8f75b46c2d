"""One rank of a learner without streams: `python -m tests.service.one_rank <artifacts> <orders.json> <sharding>`.

The first rank trains and publishes the batches of the file in order, writes what became of each to `report.json` beside it,
and forgets its learner before a batch that says so; the others follow.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import cast

import torch

from services.trainer.batch_trainer import BatchTrainer
from services.trainer.checkpoint import CheckpointStore
from services.trainer.distributed import Ranks, Sharding
from triforge.errors import TriforgeError
from triforge.store.artifacts import ArtifactStore
from triforge.types import TrainBatch


def lead(trainer: BatchTrainer, store: ArtifactStore, orders: Path) -> None:
    """Work off the file."""
    told: list[dict[str, object]] = []
    for order in json.loads(orders.read_text()):
        batch = TrainBatch.model_validate_json(json.dumps(order["batch"]))
        if order["forget"]:
            trainer.drop()
        checkpoints = CheckpointStore(store, batch.run_id, batch.role)
        try:
            learner, report = trainer.step(checkpoints, batch, lambda: False)
        except TriforgeError as error:
            trainer.drop()
            told.append({"error": error.detail})
            continue
        checkpoints.publish(learner, batch, report, keep=10)
        trainer.keep(batch, learner)
        told.append(dict(report.metrics))
    orders.with_name("report.json").write_text(json.dumps(told))


def main() -> None:
    """One process."""
    torch.set_num_threads(1)
    ranks = Ranks.join(sharding=cast(Sharding, sys.argv[3]))
    store = ArtifactStore(sys.argv[1])
    trainer = BatchTrainer(store, ranks)
    if ranks.rank == 0:
        lead(trainer, store, Path(sys.argv[2]))
        trainer.close()
    else:
        trainer.follow()


if __name__ == "__main__":
    main()
