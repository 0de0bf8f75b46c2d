"""Two ranks hand their weights over by broadcast, as one does; a rank that dies on the way leaves every engine with whole weights."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from pydantic import SecretStr
from starlette.responses import JSONResponse

from services.local_engine.app import create_app
from services.local_engine.engine import Engine
from services.policy.engines.sglang import SGLangEngine
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.weights.tensors import stored
from tests.service.learners import BASE, a_batch, answers
from tests.service.test_weights_travel import ADMIN, Service
from tests.unit.local_engine.models import build_folder, new_engine
from tests.warm_processes import WarmProcess
from triforge.broker import Broker
from triforge.config import Settings
from triforge.store.artifacts import ArtifactStore
from triforge.supervisor.ports import free_port
from triforge.types import WeightsReady, WeightsUpdate

LEARNER = ("services.trainer", "learner", "--role", "policy", "--sharding", "full")
DYING = "tests.service.dying_rank"
PATIENCE_S = 150.0  # two processes load torch on a busy machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that the learner trains and the engines serve."""
    return build_folder(tmp_path / "model")


@asynccontextmanager
async def two_ranks(
    redis_url: str, store: ArtifactStore, log: Path, *command: str
) -> AsyncIterator[asyncio.Task[None]]:
    """Two ranks of a learner; yield a task that ends with the first of them and, as torchrun does, ends the other."""
    settings = Settings(
        redis_url=redis_url, artifacts_url=store.root, lease_s=0.6, handover="distributed",
        admin_api_key=SecretStr(ADMIN),
    )  # fmt: skip
    group = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    with ExitStack() as stack:
        ranks = []
        for rank in ("0", "1"):
            env = settings.environment() | group | {"RANK": rank, "LOCAL_RANK": rank}
            process = WarmProcess(*command, env=env, log=log / f"rank-{rank}.log")
            ranks.append(stack.enter_context(process))

        async def watch() -> None:
            while all(rank.returncode is None for rank in ranks):  # noqa: ASYNC110 (processes send no event)
                await asyncio.sleep(0.05)
            for rank in ranks:
                if rank.returncode is None:
                    rank.send_signal(signal.SIGKILL)

        watching = asyncio.create_task(watch())
        try:
            yield watching
        finally:
            watching.cancel()


class Behind:
    """An engine behind something that sees each request first."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def meet(self, path: str, body: bytes) -> Any:
        """Return the app that answers the request."""
        return self.app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        first = await receive()
        app, messages = await self.meet(scope["path"], first["body"]), iter([first])

        async def again() -> Any:
            return next(messages, None) or await receive()

        await app(scope, again, send)


class NoDisk(Behind):
    """An engine that cannot read what the learner writes."""

    def __init__(self, folder: Path, app: Any) -> None:
        super().__init__(app)
        self._folder = folder

    async def meet(self, path: str, body: bytes) -> Any:
        if path == "/update_weights_from_disk" and str(self._folder).encode() in body:
            return JSONResponse({"success": False, "message": "no such folder"}, 400)
        return self.app


@contextmanager
def engines(
    folder: Path, *fronts: Callable[[Any], Any], version: str = str(BASE)
) -> Iterator[tuple[list[Engine], Service]]:
    """Engines that hold the model, each behind a front of its own, and a policy service before them."""
    made = [new_engine(folder, version=version) for _ in fronts]
    clients = []
    with ExitStack() as stack:
        for number, (engine, front) in enumerate(zip(made, fronts, strict=True)):
            engine.start()
            stack.callback(engine.stop)
            app = front(create_app(engine=engine, served_name="tiny", admin_api_key=ADMIN))
            transport, url = httpx.ASGITransport(app), f"http://engine-{number}"
            clients.append(SGLangEngine(url, admin_api_key=ADMIN, transport=transport))
        yield made, Service(clients, folder, "distributed")


async def holds(engine: Engine, folder: Path) -> bool:
    """Whether each tensor of an engine is that of a folder, bit by bit."""
    equal = []
    for name, wanted in stored(folder)["model"].items():
        held = await engine.call(lambda name=name: engine.model.tensor(name).clone())
        equal.append(held.dtype == wanted.dtype and torch.equal(held, wanted))
    assert len(equal) > 20
    return all(equal)


def update_to(ready: WeightsReady) -> WeightsUpdate:
    assert ready.error is None, ready.error
    assert len(ready.handover or ()) == 2, "each rank says where its part can be had"
    return WeightsUpdate(
        version=ready.version, uri=ready.uri, digest=ready.digest, handover=ready.handover
    )


@pytest.mark.timeout(2 * PATIENCE_S)
async def test_what_two_ranks_broadcast_is_what_their_folder_holds(
    broker: Broker, redis_url: str, store: ArtifactStore, folder: Path, tmp_path: Path
) -> None:
    async with two_ranks(redis_url, store, tmp_path, *LEARNER):
        await broker.announce(a_batch(store, folder))
        (ready,) = await answers(broker, 1, within_s=PATIENCE_S)
        with engines(folder, partial(NoDisk, Path(ready.uri))) as ((engine,), service):
            await service.weights.look()
            assert not await holds(engine, Path(ready.uri))
            state = await service.weights.update(update_to(ready))
            assert (state.version, state.ready) == (BASE + 1, 1)
            assert await holds(engine, Path(ready.uri))
            await service.pool.close()


@pytest.mark.timeout(2 * PATIENCE_S)
async def test_a_rank_that_dies_while_weights_are_gathered_leaves_the_version_before(
    broker: Broker, redis_url: str, store: ArtifactStore, folder: Path, tmp_path: Path
) -> None:
    versions = CheckpointStore(store, "run", "policy")
    async with two_ranks(redis_url, store, tmp_path, DYING, "full", "gathering") as dead:
        await broker.announce(a_batch(store, folder))
        await asyncio.wait_for(dead, PATIENCE_S)
    assert versions.checkpoints.is_dir(), "the step was taken"
    assert versions.newest() == -1
    assert await broker.read_weights("0", block_s=0.1) == []


@pytest.mark.timeout(2 * PATIENCE_S)
async def test_a_rank_that_dies_while_weights_are_sent_leaves_no_engine_with_a_part_of_them(
    broker: Broker, redis_url: str, store: ArtifactStore, folder: Path, tmp_path: Path
) -> None:
    async with two_ranks(redis_url, store, tmp_path, DYING, "replicate", "sending"):
        await broker.announce(a_batch(store, folder))
        (ready,) = await answers(broker, 1, within_s=PATIENCE_S)
        new = Path(ready.uri)
        with engines(folder, Behind, partial(NoDisk, new)) as ((reads, cannot), service):
            await service.weights.look()
            state = await service.weights.update(update_to(ready))
            assert (state.version, state.ready) == (BASE + 1, 1)
            assert int(service.pool.metrics.broadcasts_missed._value.get()) >= 1
            assert (await holds(reads, new), reads.version) == (True, str(BASE + 1))
            assert (await holds(cannot, folder), cannot.version) == (True, str(BASE))
            await service.pool.close()
