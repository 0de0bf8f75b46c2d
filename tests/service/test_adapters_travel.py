"""Adapters from a learner to a running engine, under requests: no request is lost, and every token is of its version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import torch

from demo.models.tiny_models import TinyShape, build_tiny_model
from services.local_engine.app import create_app as create_engine_app
from services.local_engine.engine import Engine
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.lora import AdaptedModel, LoraShape
from tests.batches import train_batch
from tests.unit.local_engine.models import new_engine
from tests.unit.trainer.conftest import WORDS, sampled_rows
from triforge.errors import InputError, PolicyError, UnavailableError, WeightsError
from triforge.store.artifacts import ArtifactStore
from triforge.types import (
    ChatMessage,
    GenerateReply,
    GenerateRequest,
    Sampling,
    WeightsReady,
    WeightsUpdate,
)

SHAPE = LoraShape(rank=4, alpha=8)
GO = GenerateRequest(
    messages=(ChatMessage(role="user", content="go egg"),), sampling=Sampling(max_new_tokens=8), n=2
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyShape(hidden=16, layers=2, heads=2, max_positions=64)
    return build_tiny_model(tmp_path_factory.mktemp("models") / "base", WORDS, shape=shape, seed=3)


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(ArtifactStore(str(tmp_path / "artifacts")), "run", "policy")


def step(checkpoints: CheckpointStore, learner: Learner, base: Path, number: int) -> WeightsReady:
    """Train once, far enough for the adapter to matter, and publish version `number`."""
    settings = {"learning_rate": 0.03, "lora_rank": SHAPE.rank, "lora_alpha": SHAPE.alpha}
    batch = train_batch(
        base, batch_id=f"run-{number}", step=number, version=number - 1, uri="rows", num_rows=8, learner=settings
    )  # fmt: skip
    report = learner.train(batch, sampled_rows(base, 8, seed=number))
    return checkpoints.publish(learner, batch, report, keep=4)[0]


def update_of(ready: WeightsReady) -> WeightsUpdate:
    return WeightsUpdate(version=ready.version, uri=ready.uri, digest=ready.digest)


async def service_of(
    engine: Engine, base: Path, role: str = "policy", *, shared: bool = False
) -> Gateway:
    """A service before an engine, which it may share with others."""
    app = create_engine_app(engine=engine, served_name="tiny", admin_api_key="admin")
    transport = httpx.ASGITransport(app)
    pool = Pool([SGLangEngine("http://engine", admin_api_key="admin", transport=transport)])
    weights = WeightSync(pool, role=role, model_path=str(base), shared=shared)
    await weights.look()
    return Gateway(pool, weights)


@pytest.fixture
def engine(base: Path) -> Iterator[Engine]:
    made = new_engine(base)
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def gateway(engine: Engine, base: Path) -> AsyncIterator[Gateway]:
    made = await service_of(engine, base)
    yield made
    await made.pool.close()


def check(reply: GenerateReply, models: dict[int, AdaptedModel]) -> int:
    """Pass if every token of an answer has the log-probability that the learner gives it at the version it names."""
    for output in reply.outputs:
        (version,) = {span.version for span in output.versions}
        prompt = list(reply.prompt_ids)
        wanted = models[version].logprobs([*prompt, *output.ids])[len(prompt) - 1 :]
        assert list(output.logprobs) == pytest.approx(wanted, abs=1e-4)
    return version


async def test_steps_of_a_learner_go_live_under_requests_and_every_token_is_of_its_version(
    gateway: Gateway, engine: Engine, checkpoints: CheckpointStore, base: Path
) -> None:
    learner = Learner.fresh(base, shape=SHAPE)
    models = {0: AdaptedModel.over(base, SHAPE)}
    replies: list[GenerateReply] = []
    ended = asyncio.Event()

    async def ask() -> None:
        while not ended.is_set():
            replies.extend(await gateway.generate([GO, GO]))

    asking = [asyncio.create_task(ask()) for _ in range(2)]
    for number in (1, 2):
        ready = await asyncio.to_thread(step, checkpoints, learner, base, number)
        assert (await gateway.weights.update(update_of(ready))).ready == 1
        models[number] = await asyncio.to_thread(_model, checkpoints, base, number)
        (reply,) = await gateway.generate([GO])
        assert check(reply, models) == number
    ended.set()
    await asyncio.gather(*asking)
    seen = [check(reply, models) for reply in replies]
    assert {0, 2} <= set(seen)
    await gateway.weights.look()
    assert set(engine.adapters) == {"v000002"}
    assert gateway.pool.members[0].paused_s == 0.0
    # The steps did something, so that an engine without the adapter would have been found out.
    first, last = [m.logprobs(range(6, 14)) for m in (models[0], models[2])]
    assert float((torch.tensor(first) - torch.tensor(last)).abs().mean()) > 0.01
    assert (await gateway.weights.rollback(1)).version == 3
    (reply,) = await gateway.generate([GO])
    assert check(reply, {3: models[1]}) == 3


def _model(checkpoints: CheckpointStore, base: Path, version: int) -> AdaptedModel:
    found = checkpoints.load(version, base, SHAPE).model
    assert isinstance(found, AdaptedModel)
    return found


async def test_an_engine_whose_adapter_is_another_one_than_published_is_found_out(
    gateway: Gateway, checkpoints: CheckpointStore, base: Path
) -> None:
    learner = Learner.fresh(base, shape=SHAPE)
    ready = await asyncio.to_thread(step, checkpoints, learner, base, 1)
    await gateway.weights.update(update_of(ready))
    other = await asyncio.to_thread(step, checkpoints, learner, base, 2)
    honest = gateway.pool.members[0].engine

    class Misled(SGLangEngine):
        async def load_adapter(self, name: str, folder: str) -> None:
            await honest.load_adapter(name, ready.uri)

    misled = Misled(honest.url)
    misled._data, misled._control, misled._inform = honest._data, honest._control, honest._inform  # type: ignore[attr-defined]
    gateway.pool.members[0].engine = misled
    with pytest.raises(UnavailableError, match=r"log-probabilities are off by 0\."):
        await gateway.weights.update(update_of(other))
    assert gateway.weights.version == 1
    (reply,) = await gateway.generate([GO])
    assert check(reply, {1: await asyncio.to_thread(_model, checkpoints, base, 1)}) == 1


async def test_what_the_engine_refuses_leaves_the_old_version_serving(
    gateway: Gateway, checkpoints: CheckpointStore, base: Path
) -> None:
    ready = await asyncio.to_thread(step, checkpoints, Learner.fresh(base, shape=SHAPE), base, 1)
    settings = Path(ready.uri) / "adapter_config.json"
    settings.write_text(settings.read_text().replace('"use_dora": false', '"use_dora": true'))
    with pytest.raises(WeightsError, match="use_dora is True, which is not supported"):
        await gateway.weights.update(WeightsUpdate(version=1, uri=ready.uri))
    assert (gateway.weights.version, gateway.weights.state().ready) == (0, 1)


@pytest.fixture
async def two(engine: Engine, base: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """The services of two models in front of one engine."""
    policy, mover = [await service_of(engine, base, r, shared=True) for r in ("policy", "mover")]
    yield policy, mover
    for gateway in (policy, mover):
        await gateway.pool.close()


async def test_two_models_are_adapters_over_the_base_of_one_engine(
    two: tuple[Gateway, Gateway], engine: Engine, tmp_path: Path, base: Path
) -> None:
    """Each has versions, trained weights and a way back of its own, and neither disturbs the other."""
    services = policy, mover = two
    stores = [
        CheckpointStore(ArtifactStore(str(tmp_path / r)), "run", r) for r in ("policy", "mover")
    ]
    learners = [Learner.fresh(base, shape=SHAPE) for _ in services]
    # runs begin with the base, each under a number of its own
    assert (await policy.weights.update(WeightsUpdate(version=3, uri=str(base)))).version == 3
    plain = {n: AdaptedModel.over(base, SHAPE) for n in (0, 3)}
    assert [check((await s.generate([GO]))[0], plain) for s in services] == [3, 0]
    long = GO.model_copy(update={"messages": (ChatMessage(role="user", content="go " * 99),)})
    with pytest.raises(InputError, match="exceeds the model's context"):
        await policy.generate([long])
    models: list[dict[int, AdaptedModel]] = [{3: plain[3]}, {0: plain[0]}]
    for which, number in ((0, 4), (1, 1), (0, 5)):
        ready = await asyncio.to_thread(step, stores[which], learners[which], base, number)
        assert (await services[which].weights.update(update_of(ready))).ready == 1
        models[which][number] = await asyncio.to_thread(_model, stores[which], base, number)
        for service, known in zip(services, models, strict=True):
            (reply,) = await service.generate([GO])
            assert check(reply, known) == max(known)
    for service in services:
        await service.weights.look()
    assert set(engine.adapters) == {"policy-v000005", "mover-v000001"}
    assert (await policy.weights.rollback(3)).version == 6
    assert check((await policy.generate([GO]))[0], {6: plain[3]}) == 6
    assert check((await mover.generate([GO]))[0], models[1]) == 1
    assert engine.version == "0", "the base is untouched"
    assert [s.pool.members[0].paused_s for s in services] == [0.0, 0.0]


async def test_a_service_of_two_that_starts_again_finds_its_own_adapter_and_leaves_the_others(
    two: tuple[Gateway, Gateway], engine: Engine, tmp_path: Path, base: Path
) -> None:
    policy, mover = two
    stores = {n: CheckpointStore(ArtifactStore(str(tmp_path / str(n))), "run", "r") for n in (7, 2)}
    for service, (number, store) in zip((policy, mover), stores.items(), strict=True):
        ready = await asyncio.to_thread(step, store, Learner.fresh(base, shape=SHAPE), base, number)
        await service.weights.update(update_of(ready))
    engine.adapters["mover-v000001"] = engine.adapters["mover-v000002"]
    again = await service_of(engine, base, "mover", shared=True)
    assert again.weights.version == 2
    await again.weights.look()
    assert set(engine.adapters) == {"policy-v000007", "mover-v000002"}
    shape = TinyShape(hidden=16, layers=2, heads=2, max_positions=64)
    other = build_tiny_model(tmp_path / "other", WORDS, shape=shape, seed=4)
    with pytest.raises(WeightsError, match="TRIFORGE_SHARED_ENGINES = true, expected"):
        await again.weights.update(WeightsUpdate(version=9, uri=str(other)))
    with pytest.raises(PolicyError, match="keep their memory"):
        await again.weights.memory.release()
    assert check((await policy.generate([GO]))[0], {7: _model(stores[7], base, 7)}) == 7
    await again.pool.close()
