"""Updates by halves: half of the engines serve while the others load."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_engine import Body, FakeEngine, Reply
from tests.unit.policy.conftest import MakeService
from triforge.errors import TriforgeError
from triforge.types import WeightsUpdate

LOAD = "/update_weights_from_disk"


class Counted(FakeEngine):
    """Counts, when it has loaded a folder, who takes requests meanwhile."""

    count: Callable[[], int] = staticmethod(lambda: 0)
    seen: list[int]

    async def _update(self, body: Body) -> Reply:
        await asyncio.sleep(0.02)
        self.seen.append(self.count())
        return await super()._update(body)


@pytest.fixture
def counted(make_service: MakeService) -> Any:
    """Makes a service of that many engines, and the list of what they count."""

    def make(number: int, **options: Any) -> Any:
        fakes, seen = [Counted() for _ in range(number)], list[int]()
        service = make_service(*fakes, slack_s=0.1, **options)

        def count() -> int:
            members = zip(service.pool.members, fakes, strict=True)
            return sum(member.serving and not fake.paused for member, fake in members)

        for fake in fakes:
            fake.count, fake.seen = count, seen
        return service, seen

    return make


def update(model: Path, version: int) -> WeightsUpdate:
    folder = shutil.copytree(model, model.parent / f"v{version}", dirs_exist_ok=True)
    return WeightsUpdate(version=version, uri=str(folder))


@pytest.mark.parametrize(("halves", "serving"), [(True, 2), (False, 0)])
async def test_half_of_the_engines_serve_while_the_others_load(
    counted: Any, model: Path, halves: bool, serving: int
) -> None:
    service, seen = counted(4, halves=halves)
    await service.start()
    watch = asyncio.create_task(service.weights.watch())
    for version in (1, 2):
        state = await service.weights.update(update(model, version))
        assert (state.version, state.ready) == (version, 4)
    assert (len(seen), min(seen)) == (8, serving), "each engine loads each version once"
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


async def test_one_that_hangs_in_the_first_half_holds_up_no_update(
    counted: Any, model: Path
) -> None:
    service, _ = counted(4, halves=True)
    await service.start()
    service.fakes[0].hangs = {LOAD}
    async with asyncio.timeout(20.0):
        state = await service.weights.update(update(model, 1))
    assert (state.version, state.ready) == (1, 3)
    await service.weights._end()


async def test_what_the_first_half_refuses_no_other_engine_is_asked_for(
    counted: Any, model: Path
) -> None:
    service, _ = counted(3, halves=True)
    await service.start()
    wanted = update(model, 1)
    for fake in service.fakes:
        fake.refuse.add(wanted.uri)
    with pytest.raises(TriforgeError):
        await service.weights.update(wanted)
    assert (service.weights.version, service.weights.state().ready) == (0, 3)
    assert sum(LOAD in fake.paths() for fake in service.fakes) == 2
