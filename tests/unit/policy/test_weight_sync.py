"""Weight versions: verified before they are active, never going down, and no request lost on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import MakeService, start, versions
from triforge.errors import ConflictError, UnavailableError, WeightsError
from triforge.testing.model_folders import words_folder
from triforge.types import WeightsState, WeightsUpdate


@pytest.fixture
def newer(model: Path, tmp_path: Path) -> Path:
    """A second weight folder with the same tokenizer."""
    return shutil.copytree(model, tmp_path / "newer")


async def test_start_with_what_engines_hold(make_service: MakeService, model: Path) -> None:
    service = await start(make_service, FakeEngine(version="default"), FakeEngine())
    assert service.weights.state() == WeightsState(
        role="policy", version=0, uri=str(model), engines=2, ready=2
    )


async def test_before_an_engine_answers_nothing_is_known(make_service: MakeService) -> None:
    service = await start(make_service, FakeEngine(gone=True))
    with pytest.raises(UnavailableError, match="no engine has answered"):
        service.weights.state()
    with pytest.raises(UnavailableError, match="none of 1 engines"):
        await service.weights.ready()


async def test_repeated_update_changes_nothing(make_service: MakeService, newer: Path) -> None:
    service = await start(make_service, FakeEngine())
    update = WeightsUpdate(version=5, uri=str(newer))
    first = await service.weights.update(update)
    calls = len(service.fakes[0].calls)
    assert await service.weights.update(update) == first
    assert len(service.fakes[0].calls) == calls


@pytest.mark.parametrize(("version", "other"), [(4, False), (5, True)])
async def test_versions_only_go_up(
    make_service: MakeService, model: Path, newer: Path, version: int, other: bool
) -> None:
    service = await start(make_service, FakeEngine())
    await service.weights.update(WeightsUpdate(version=5, uri=str(newer)))
    uri = str(model if other else newer)
    with pytest.raises(ConflictError, match="version 5"):
        await service.weights.update(WeightsUpdate(version=version, uri=uri))
    assert service.weights.state().version == 5


async def test_refused_folder(make_service: MakeService, newer: Path) -> None:
    service = await start(
        make_service, FakeEngine(refuse={str(newer)}), FakeEngine(refuse={str(newer)})
    )
    with pytest.raises(WeightsError, match="http://a refuses") as caught:
        await service.weights.update(WeightsUpdate(version=5, uri=str(newer)))
    assert len(caught.value.problems) == 2
    assert (service.weights.state().version, service.weights.state().ready) == (0, 2)
    assert await versions(service) == {0}
    assert [fake.paused for fake in service.fakes] == ["", ""]


async def test_failed_engine_is_healed(make_service: MakeService, newer: Path) -> None:
    broken, healthy = FakeEngine(refuse={str(newer)}), FakeEngine()
    service = await start(make_service, broken, healthy)
    state = await service.weights.update(WeightsUpdate(version=5, uri=str(newer)))
    assert (state.version, state.ready) == (5, 1)
    assert await versions(service, 6) == {5}
    assert "/generate" not in broken.paths()
    broken.refuse.clear()
    await service.start()
    assert service.weights.state().ready == 2
    assert broken.version == "5"
    assert await versions(service, 6) == {5}
    assert "/generate" in broken.paths()


async def test_restarted_engine_gets_live_weights(make_service: MakeService, newer: Path) -> None:
    service = await start(make_service, FakeEngine())
    await service.weights.update(WeightsUpdate(version=5, uri=str(newer)))
    service.fakes[0].version = "0"
    await service.start()
    assert service.fakes[0].version == "5"
    assert await versions(service) == {5}


async def test_newest_held_version_is_active(make_service: MakeService, newer: Path) -> None:
    service = make_service(FakeEngine(), FakeEngine(version="7"))
    service.fakes[1].model_path = str(newer)
    await service.start()
    assert (service.weights.state().version, service.weights.state().uri) == (7, str(newer))
    assert service.fakes[0].version == "7"


async def test_weights_that_a_broken_off_load_left_behind_are_not_adopted(
    make_service: MakeService, newer: Path
) -> None:
    service = await start(make_service, FakeEngine(version="-1"))
    with pytest.raises(UnavailableError, match="no engine has answered"):
        service.weights.state()
    await service.weights.update(WeightsUpdate(version=5, uri=str(newer)))
    assert await versions(service) == {5}


async def test_tokenizer_comes_with_weights(make_service: MakeService, tmp_path: Path) -> None:
    service = await start(make_service, FakeEngine())
    before = service.weights.renderer
    same = shutil.copytree(tmp_path / "model", tmp_path / "same")
    await service.weights.update(WeightsUpdate(version=1, uri=str(same)))
    assert service.weights.renderer is before
    other = words_folder(tmp_path / "other", ["new", "words"])
    await service.weights.update(WeightsUpdate(version=2, uri=str(other)))
    assert service.weights.renderer.decode([5, 6]) == "new words"


async def test_broken_tokenizer_is_refused(make_service: MakeService, newer: Path) -> None:
    service = await start(make_service, FakeEngine())
    (newer / "tokenizer.json").write_text("{}")
    with pytest.raises(WeightsError, match="not a tokenizer"):
        await service.weights.update(WeightsUpdate(version=5, uri=str(newer)))
    assert service.fakes[0].version == "0"
