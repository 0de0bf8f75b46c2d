"""A local engine and a learner in turns on one card: each step equals one without turns, and no process holds memory out of turn."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import httpx
import torch

from services.local_engine.app import create_app
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from services.trainer.learner.batch_trainer import BatchTrainer
from tests.batches import train_batch
from tests.unit.local_engine.models import build_folder, new_engine
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.types import (
    ChatMessage,
    GenerateReply,
    GenerateRequest,
    Sampling,
    TrainRow,
    WeightsUpdate,
)


def taken(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of memory behind tensors."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def row_of(reply: GenerateReply, number: int) -> TrainRow:
    prompt, (output,) = reply.prompt_ids, reply.outputs
    context, n = (0.0,) * len(prompt), len(output.ids)
    return TrainRow(
        key=str(number), ids=(*prompt, *output.ids), logprobs=(*context, *output.logprobs),
        advantages=(*context, *[1.0 - 2.0 * (number % 2)] * n), weights=(*context, *[1 / (4 * n)] * n),
        versions=(*[-1] * len(prompt), *[output.versions[0].version] * n), task_id="t",
    )  # fmt: skip


class Card:
    """A policy service with a local engine, and a learner, in one process."""

    def __init__(self, folder: Path, work: Path, *, colocate: bool) -> None:
        self.folder, self.colocate = folder, colocate
        self.engine = new_engine(folder)
        app = create_app(engine=self.engine, served_name="policy", host="engine")
        pool = Pool([SGLangEngine("http://engine", transport=httpx.ASGITransport(app))])
        self.weights = WeightSync(pool, role="policy", model_path=str(folder))
        self.gateway = Gateway(pool, self.weights)
        self.store = ArtifactStore(str(work))
        self.trainer = BatchTrainer(self.store)

    async def step(self, step: int) -> Path:
        """Play, train and publish; the folder of the trained weights."""
        rows = []
        for number in range(4):
            asked = GenerateRequest(
                messages=(ChatMessage(role="user", content=f"w{number} w2"),),
                sampling=Sampling(max_new_tokens=6, seed=10 * step + number),
            )
            rows.append(row_of((await self.gateway.generate([asked]))[0], number))
        uri = write_rows(self.store, f"rows-{step}.parquet", rows)
        batch = train_batch(
            self.folder, batch_id=f"run-{step}", step=step, version=step - 1, base=0, uri=uri, num_rows=4,
            written=step - 1 or None, learning_rate=1e-2, updates_per_step=2, colocate=self.colocate,
        )  # fmt: skip
        if self.colocate:
            await self.weights.memory.release()
            assert taken(self.engine.model.weights.values()) == 0
        ready = self.trainer.train(batch)
        assert ready is not None
        assert ready.error is None
        held = self.trainer._held
        assert held is not None
        assert (taken(held[1].model.module.parameters()) == 0) == self.colocate
        update = WeightsUpdate(version=ready.version, uri=ready.uri, digest=ready.digest)
        await self.weights.update(update)
        return Path(ready.uri)


async def test_two_steps_give_the_same_bytes_with_memory_given_back_and_without(
    tmp_path: Path,
) -> None:
    folder, found = build_folder(tmp_path / "model", seed=3), []
    for colocate in (False, True):
        card = Card(folder, tmp_path / str(colocate), colocate=colocate)
        card.engine.start()
        try:
            await card.weights.look()
            versions = [await card.step(step) for step in (1, 2)]
        finally:
            card.engine.stop()
        found.append([(version / "model.safetensors").read_bytes() for version in versions])
    assert found[0][0] != found[0][1]
    assert found[0] == found[1]
