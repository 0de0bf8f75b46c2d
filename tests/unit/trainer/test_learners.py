"""The handover of a learner reaches the policy service with the weights, once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import SecretStr

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.learner.parallel.broadcast import broadcasts
from services.trainer.learner.process import LearnerProcess
from services.trainer.loop.engines import Engines
from services.trainer.loop.learners import Learners
from tests.batches import train_batch
from tests.unit.trainer.conftest import VERSION, MakeBatch
from tests.unit.trainer.test_rollback import Service
from triforge import __version__
from triforge.clients.transport import get_json, http_client, request
from triforge.config import Settings
from triforge.errors import ConfigError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.types import TrainBatch, TrainRow, WeightsReady

BATCH = train_batch("m", batch_id="b", version=3, uri="rows")  # fmt: skip
OFFER = ("http://learner-0:40331", "http://learner-1:37217")


class Stream:
    """The stream of weights, with garbage and one announcement on it."""

    async def last_id(self, _: str) -> str:
        return "0"

    async def announce(self, _: TrainBatch) -> None:
        return

    async def read_weights(
        self, _: str, *, block_s: float
    ) -> list[tuple[str, WeightsReady | None]]:
        ready = WeightsReady(
            run_id="run", role="policy", step=1, version=4, uri="/w/v000004", digest="d", handover=OFFER
        )  # fmt: skip
        return [("0", None), ("1", ready)]


async def test_the_service_hears_of_the_learners_api_with_the_new_version_only() -> None:
    async def check() -> None:
        return

    service, recorded = Service(3, "/w/v000003"), list[Any]()
    store = SimpleNamespace(add_weights=lambda *row, **_: recorded.append(row))
    parts: Any = SimpleNamespace(broker=Stream(), apis={"policy": service}, store=store)
    config: Any = SimpleNamespace(run=SimpleNamespace(step_deadline_s=5.0))
    trained = await Learners(parts, "run", config, {}, check).announce([BATCH])
    engines = Engines(parts, "run")
    assert await engines.update_weights(trained) == {"policy": 4}
    assert await engines.update_weights(trained) == {"policy": 4}
    # A service that serves a version already changes nothing, unless it was written again.
    assert [update.handover for update in service.served] == [OFFER, OFFER]
    assert recorded[0] == ("run", "policy", 4, "/w/v000004", "d")


class OneAnswer:
    """A wire that remembers what is announced."""

    def __init__(self) -> None:
        self.announced: list[WeightsReady] = []

    @contextlib.asynccontextmanager
    async def lease(self, _: str) -> AsyncIterator[bool]:
        yield True

    async def announce(self, ready: WeightsReady) -> None:
        self.announced.append(ready)


async def test_a_learner_that_broadcasts_says_where_with_every_version_it_announces(
    tmp_path: Path, model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
) -> None:
    store = ArtifactStore(str(tmp_path / "artifacts"))
    learner, batch = Learner.fresh(model_folder), make_batch(step=1, version=VERSION)
    checkpoints = CheckpointStore(store, batch.run_id, "policy")
    checkpoints.publish(learner, batch, learner.train(batch, rows), keep=3)
    broker: Any = OneAnswer()
    loop = LearnerProcess(broker, store, "policy", BatchTrainer(store), handover=OFFER)
    await loop._serve(batch, "")  # it is published already, and announced again
    (ready,) = broker.announced
    assert (ready.version, ready.handover, ready.error) == (VERSION + 1, OFFER, None)


async def test_a_learners_api_is_open_while_it_trains_and_closed_afterwards(
    tmp_path: Path,
) -> None:
    store = ArtifactStore(str(tmp_path / "artifacts"))
    settings = Settings(handover="distributed", admin_api_key=SecretStr("admin"))
    with broadcasts(store, settings, torch.device("cpu")) as (handover,):
        assert handover.startswith("http://127.0.0.1:")
        async with http_client(handover) as http:
            assert await get_json(http, "/healthz", deadline_s=20.0) == {
                "status": "alive",
                "version": __version__,
            }
            with pytest.raises(ConfigError, match="TRIFORGE_ADMIN_API_KEY must be"):
                await request(http, "DELETE", "/v1/broadcasts/none")
    async with http_client(handover) as http:
        with pytest.raises(UnavailableError):
            await get_json(http, "/healthz")
