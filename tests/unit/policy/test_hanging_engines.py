"""An engine that hangs while it loads: no update waits for it, and the reported version is the one that answers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.policy.weights.loader import WeightLoader
from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import GO, MakeService, Service, start, until, versions
from triforge.errors import UnavailableError
from triforge.types import WeightsUpdate

LOAD = "/update_weights_from_disk"
Folder = Callable[[int], WeightsUpdate]


@pytest.fixture
def update(model: Path, tmp_path: Path) -> Folder:
    """Updates to folders of their own."""

    def made(version: int) -> WeightsUpdate:
        folder = shutil.copytree(model, tmp_path / f"v{version}", dirs_exist_ok=True)
        return WeightsUpdate(version=version, uri=str(folder))

    return made


@contextlib.asynccontextmanager
async def watched(service: Service) -> AsyncIterator[None]:
    """The service looks at its engines, as it does in a deployment."""
    watch = asyncio.create_task(service.weights.watch())
    try:
        await until(lambda: len(service.pool.serving()) == len(service.fakes))
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_no_update_waits_for_an_engine_that_shows_a_version_and_then_hangs(
    make_service: MakeService, update: Folder
) -> None:
    service = make_service(FakeEngine(), slack_s=0.1)
    async with watched(service), asyncio.timeout(20.0):
        service.fakes[0].hangs = {"/continue_generation"}
        assert (await service.weights.update(update(1))).version == 1
        assert service.pool.members[0].loading, "it is given its own time"
        service.fakes[0].hangs = set()


async def test_an_engine_that_hung_comes_back_by_itself(
    make_service: MakeService, update: Folder
) -> None:
    service = make_service(
        FakeEngine(), FakeEngine(), slack_s=0.2, loader=WeightLoader(timeout_s=2.0)
    )
    hung, healthy = service.fakes
    async with watched(service):
        hung.hangs = {LOAD}
        for version in (1, 2, 3):
            async with asyncio.timeout(60.0):
                state = await service.weights.update(update(version))
            assert (state.version, state.ready) == (version, 1)
            assert await versions(service) == {version}
        assert "/generate" not in hung.paths()
        hung.hangs = set()
        await until(lambda: len(service.pool.serving()) == 2)
        assert (hung.version, healthy.version) == ("3", "3")


async def test_an_engine_that_hangs_in_an_update_is_given_no_second_one(
    make_service: MakeService, update: Folder
) -> None:
    """SGLang has one place for the result of an update, and ends itself when there are two."""
    service = make_service(FakeEngine(), FakeEngine(), slack_s=0.1, loader=WeightLoader(timeout_s=0.3))  # fmt: skip
    hung, _ = service.fakes
    async with watched(service):
        hung.hangs = {LOAD}
        moving = asyncio.create_task(service.weights.update(update(1)))
        await until(lambda: LOAD in hung.paths())
        hung.hangs = {LOAD, "/server_info"}  # its scheduler answers nothing more
        await moving
        paused = hung.paths().count("/pause_generation")
        await until(lambda: hung.paths().count("/pause_generation") > paused)
        await until(lambda: not service.pool.members[0].loading)
        assert hung.paths().count(LOAD) == 1


async def test_an_engine_that_hangs_when_it_is_healed_blocks_no_update(
    make_service: MakeService, update: Folder
) -> None:
    service = make_service(FakeEngine(), FakeEngine(), slack_s=0.1)
    async with watched(service):
        hung, _ = service.fakes
        await service.weights.update(update(1))
        hung.hangs, hung.version = {LOAD}, "0"  # started again, and its disk does not answer
        await until(lambda: service.pool.members[0].loading)
        async with asyncio.timeout(20.0):
            state = await service.weights.update(update(2))
        assert (state.version, state.ready) == (2, 1)
        assert service.pool.members[0].loading, "the heal is still under way"


async def test_the_reported_version_is_the_one_that_answers(
    make_service: MakeService, update: Folder
) -> None:
    service = make_service(
        FakeEngine(), FakeEngine(), slack_s=1.0, loader=WeightLoader(timeout_s=0.5)
    )
    seen = set()
    async with watched(service), asyncio.timeout(60.0):
        service.fakes[0].hangs = {LOAD}
        moving = asyncio.create_task(service.weights.update(update(1)))
        while not moving.done():
            before = service.weights.state().version
            answered = await versions(service)
            assert answered <= {before, service.weights.state().version}
            seen |= answered
        assert (await moving).version == 1
    assert seen == {0, 1}


async def test_an_update_that_all_engines_hang_in_fails_at_the_deadline(
    make_service: MakeService, update: Folder
) -> None:
    service = await start(
        make_service, FakeEngine(), FakeEngine(), loader=WeightLoader(timeout_s=0.2)
    )
    for fake in service.fakes:
        fake.hangs = {LOAD}
    with pytest.raises(UnavailableError, match=r"did not load .* within 0\.2 s \(TRIFORGE_HANDOVER_TIMEOUT_S\)"):  # fmt: skip
        await service.weights.update(update(1))
    assert service.weights.state().version == 0
    for fake in service.fakes:
        fake.hangs = set()
    await service.start()
    assert service.weights.state().ready == 2
    assert await versions(service) == {0}


async def test_what_an_engine_that_hangs_was_asked_is_not_taken_from_it_before_the_deadline(
    make_service: MakeService, update: Folder
) -> None:
    """Loading takes long on a good engine, too: its requests are held, and go on."""
    service = make_service(FakeEngine(), FakeEngine(), slack_s=0.05)
    slow = service.fakes[0]
    async with watched(service):
        slow.answer, slow.wait_at = (lambda *_: [5] * 4), 2
        service.pool.exclude(service.pool.members[1], "the request is to go to the slow one")
        asked = asyncio.create_task(service.gateway.generate([GO]))
        await slow.reached.wait()
        slow.hangs = {LOAD}
        await service.weights.update(update(1))
        await asyncio.sleep(0.5)  # many looks
        assert not asked.done()
        assert service.fakes[1].paths().count("/generate") == 0
        asked.cancel()
