"""Engines that give their memory back while a learner trains on their card. What the fake held is lost with it, as SGLang's is."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest

from services.policy.engines.pool import Limits, Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from tests.fake_engine import FakeEngine, write_tensors
from tests.unit.policy.conftest import GO, MakeService, Service, start
from triforge.errors import PolicyError, TriforgeError, UnavailableError
from triforge.types import WeightsUpdate

TENSOR = {"model.norm.weight": np.arange(4, dtype=np.float32)}
ASKED = ("/pause_generation", "/release_memory_occupation", "/resume_memory_occupation", "/update_weights_from_disk", "/continue_generation")  # fmt: skip


@pytest.fixture
def model(model: Path) -> Path:
    write_tensors(model, TENSOR)
    return model


def asked(service: Service) -> list[str]:
    """The calls of the first engine after it was admitted."""
    calls = [path for path in service.fakes[0].paths() if path in ASKED]
    return calls[calls.index("/pause_generation") :]


async def test_released_engines_serve_no_request_and_again_with_the_weights_of_the_folder(
    make_service: MakeService,
) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    await service.weights.memory.release()
    assert service.weights.state().ready == 0
    await service.weights.look()  # as the watch does: it leaves them alone
    with pytest.raises(UnavailableError, match="released while a learner trains"):
        await service.gateway.generate([GO])
    assert asked(service) == list(ASKED[:2])
    await service.weights.memory.release()  # a caller that did not hear the answer
    await service.weights.memory.resume()
    state = service.weights.state()
    assert (state.version, state.ready) == (0, 2)
    for fake in service.fakes:
        np.testing.assert_array_equal(fake.weights.held["model.norm.weight"], TENSOR["model.norm.weight"])  # fmt: skip
    assert len(await service.gateway.generate([GO])) == 1
    calls = asked(service)
    await service.weights.memory.resume()  # SGLang dies of one that it was not asked to release
    assert asked(service) == calls


async def test_an_update_takes_the_memory_back_and_loads_once(
    make_service: MakeService, model: Path, tmp_path: Path
) -> None:
    newer = shutil.copytree(model, tmp_path / "newer")
    service = await start(make_service, FakeEngine())
    await service.weights.memory.release()
    state = await service.weights.update(WeightsUpdate(version=5, uri=str(newer)))
    assert (state.version, state.ready) == (5, 1)
    assert asked(service) == [*ASKED[:3], ASKED[0], *ASKED[3:]]


async def test_an_engine_that_keeps_its_memory_is_refused_and_serves_on(
    make_service: MakeService,
) -> None:
    service = await start(make_service, FakeEngine(memory_saver=False))
    with pytest.raises(PolicyError, match="start SGLang with --enable-memory-saver"):
        await service.weights.memory.release()
    await service.weights.memory.resume()
    assert service.weights.state().ready == 1
    assert "/resume_memory_occupation" not in service.fakes[0].paths()


async def test_an_engine_that_was_not_asked_for_its_memory_is_asked_again(
    make_service: MakeService,
) -> None:
    service = await start(make_service, FakeEngine())
    service.fakes[0].gone = True
    with pytest.raises(TriforgeError):
        await service.weights.memory.release()
    service.fakes[0].gone = False
    await service.weights.look()
    await service.weights.memory.release()
    assert service.fakes[0].released


@pytest.mark.parametrize("drain_s", [30.0, 0.0])
async def test_running_requests_end_first_or_are_cut_off(model: Path, drain_s: float) -> None:
    """SGLang dies when it is asked to release while a request runs."""
    fake = FakeEngine(wait_at=0, model_path=str(model))
    fake.weights.load(str(model))
    engine = SGLangEngine("http://a", transport=httpx.ASGITransport(fake))
    pool = Pool([engine], limits=Limits(drain_s=drain_s))
    weights = WeightSync(pool, role="policy", model_path=str(model))
    await weights.look()
    running = asyncio.create_task(Gateway(pool, weights).generate([GO]))
    await fake.reached.wait()
    release = asyncio.create_task(weights.memory.release())
    while pool.members[0].serving:  # noqa: ASYNC110  no other request is sent to it
        await asyncio.sleep(0)
    if drain_s:
        assert "/pause_generation" not in fake.paths()
        fake._changed.set()
    ((output,),) = [reply.outputs for reply in await running]
    await release
    assert fake.released
    assert output.finish == ("stop" if drain_s else "abort")
