"""How weights get into engines, what they have to show, and what becomes of an engine that fails or lies."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.policy.weights.adapters import Version
from services.policy.weights.evidence import read_probe
from services.policy.weights.loader import Way, WeightLoader
from services.policy.weights.verify import Verifier
from tests.fake_engine import FakeEngine, write_tensors
from tests.unit.policy.conftest import GO, MakeService, start, versions
from triforge.errors import NotFoundError, PolicyError, UnavailableError, WeightsError
from triforge.store.manifests import write_manifest
from triforge.types import WeightsUpdate

Publish = Callable[[int], Path]


@pytest.fixture
def publish(model: Path, tmp_path: Path) -> Publish:
    """Make weight folders next to each other; the weights of version v are v everywhere. `model` gets those of 0."""

    def folder(version: int) -> Path:
        made = tmp_path / "runs" / f"v{version:06d}"
        if not made.exists():
            shutil.copytree(model, made)
            fill(made, version)
            write_manifest(made, {"version": version})
        return made

    fill(model, 0)
    return folder


def fill(folder: Path, version: int) -> None:
    held = {
        "model.embed_tokens.weight": np.full((6, 4), version, np.float32),
        "model.norm.weight": np.full(4, version + 0.5, np.float32),
    }
    write_tensors(folder, held)


def update(folder: Path, version: int) -> WeightsUpdate:
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    return WeightsUpdate(version=version, uri=str(folder), digest=digest)


def held(fake: FakeEngine) -> float:
    return float(fake.weights.held["model.embed_tokens.weight"][0, 0])


async def test_stale_weights_exclude_engine(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    liar, honest = service.fakes
    liar.weights.stale = True
    state = await service.weights.update(update(publish(1), 1))
    assert (state.version, state.ready) == (1, 1)
    assert "is not believed" in service.pool.members[0].reason
    assert await versions(service) == {1}
    assert "/generate" not in liar.paths()
    liar.weights.stale = False
    await service.start()
    assert (service.weights.state().ready, held(liar), held(honest)) == (2, 1.0, 1.0)


def with_probe(folder: Path, logprob: float, **more: str) -> Path:
    probe = {"ids": [1, 2, 3], "logprobs": [logprob] * 2} | more
    (folder / "probe.json").write_text(json.dumps(probe))
    write_manifest(folder, {})
    return folder


async def test_probe_if_rows_are_hidden(make_service: MakeService, publish: Publish) -> None:
    service = make_service(FakeEngine(), FakeEngine(), slack_s=30.0)
    liar, honest = service.fakes
    liar.weights.hidden = honest.weights.hidden = True
    await service.start()
    assert "/generate" not in honest.paths(), "the initial folder has none"
    await service.weights.update(update(with_probe(publish(1), -1.5), 1))
    liar.weights.stale = True
    state = await service.weights.update(update(with_probe(publish(2), -2.5), 2))
    assert (state.version, state.ready) == (2, 1)
    assert "reports that it has weight version 2" in service.pool.members[0].reason
    assert "off by 1 in the mean" in service.pool.members[0].reason
    liar.weights.stale = False
    await service.start()
    assert service.weights.state().ready == 2


class InFloat32:
    """An engine that answers a probe a twentieth of a nat off."""

    url = "http://a"

    async def dtype(self) -> str:
        return "float32"

    async def prompt_logprobs(self, ids: list[int], _: str) -> tuple[list[float], list[int]]:
        return [-1.55] * (len(ids) - 1), []


async def test_probe_tolerance_of_bfloat16(publish: Publish) -> None:
    engine: Any = InFloat32()
    rough = read_probe(with_probe(publish(1), -1.5, dtype="bfloat16"))
    await Verifier().probe(engine, Version(1, "", probe=rough))
    exact = read_probe(with_probe(publish(2), -1.5))
    with pytest.raises(PolicyError, match=r"off by 0\.05 in the mean"):
        await Verifier().probe(engine, Version(2, "", probe=exact))


async def test_verify_by_info(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(), loader=WeightLoader(verify_by="info"))
    service.fakes[0].weights.stale = True
    assert (await service.weights.update(update(publish(1), 1))).ready == 1
    assert "/get_weights_by_name" not in service.fakes[0].paths()


async def test_failing_engine_is_asked_rarely(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine(), probe_s=1000.0)
    folder = publish(1)
    service.fakes[0].refuse.add(str(folder))
    await service.weights.update(update(folder, 1))

    def loads() -> int:
        return sum(body.get("model_path") == str(folder) for _, body in service.fakes[0].calls)

    assert loads() == 1
    await service.start()
    assert loads() == 2, "the first time it is asked again at once"
    for _ in range(3):
        await service.start()
    assert loads() == 2
    assert service.pool.metrics.weights_refused._value.get() == 2


async def test_all_engines_go_back(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    for fake in service.fakes:
        fake.weights.stale = True
    with pytest.raises(Exception, match="is not believed"):
        await service.weights.update(update(publish(1), 1))
    state = service.weights.state()
    assert (state.version, state.ready) == (0, 2)
    assert [fake.version for fake in service.fakes] == ["0", "0"]
    assert await versions(service) == {0}


async def test_torn_engine(make_service: MakeService, publish: Publish, model: Path) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    broken = service.fakes[0]
    broken.weights.stale = True
    broken.refuse.add(str(model))
    assert (await service.weights.update(update(publish(1), 1))).ready == 1
    assert broken.aborted == 1
    assert broken.version == "1", "it says the active version"
    await service.start()
    assert service.weights.state().ready == 1, "its word is not enough"
    broken.weights.stale = False
    for _ in range(3):
        await asyncio.sleep(0.05)
        await service.start()
    assert service.weights.state().ready == 2
    assert held(broken) == 1.0


@pytest.mark.parametrize(
    ("mode", "flushed", "finish"),
    [("retract", True, "stop"), ("in_place", False, "stop"), ("abort", True, "abort")],
)
async def test_running_requests_live_through_an_update_as_the_mode_says(
    make_service: MakeService, publish: Publish, mode: str, flushed: bool, finish: str
) -> None:
    fake = FakeEngine(answer=lambda *_: [5] * 40, wait_at=3)
    service = make_service(fake, loader=WeightLoader(pause_mode=mode))  # type: ignore[arg-type]
    await service.start()
    request = GO.model_copy(
        update={"sampling": GO.sampling.model_copy(update={"max_new_tokens": 40})}
    )
    answering = asyncio.create_task(service.gateway.generate([request]))
    await fake.reached.wait()
    await service.weights.update(update(publish(1), 1))
    bodies = [body for path, body in fake.calls if path == "/update_weights_from_disk"]
    assert [body["flush_cache"] for body in bodies] == [flushed]
    ((output,),) = [reply.outputs for reply in await answering]
    assert output.finish == finish
    wanted = (0,) if finish == "abort" else (0, 1)
    assert tuple(span.version for span in output.versions) == wanted


async def test_cache_of_older_weights(make_service: MakeService, publish: Publish) -> None:
    """Paused in place an engine keeps its cache, also an idle one."""
    fake = FakeEngine()
    for version in (1, 2):
        service = make_service(fake, loader=WeightLoader(pause_mode="in_place"))
        await service.start()
        for _ in range(2):
            await service.gateway.generate([GO])
            assert [piece async for piece in service.gateway.stream(GO)]
        assert len(fake.cached) == 2 * version - 1, "a cache of one version is used again"
        await service.weights.update(update(publish(version), version))
        await service.gateway.generate([GO])
    assert fake.outdated == 0
    assert fake.version == "2"


async def test_cache_of_repeated_version(make_service: MakeService, publish: Publish) -> None:
    """A version that was put in and taken back again may come once more, under the same number."""
    fake = FakeEngine()
    service = await start(make_service, fake, loader=WeightLoader(pause_mode="in_place"))
    fake.weights.stale = True
    with pytest.raises(UnavailableError, match="is not believed"):
        await service.weights.update(update(publish(1), 1))
    await service.gateway.generate([GO])
    fake.weights.stale = False
    await service.weights.update(update(publish(1), 1))
    await service.gateway.generate([GO])
    assert fake.outdated == 0


async def test_every_rank_shows_weights(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(ranks=2))
    assert (await service.weights.update(update(publish(1), 1))).ready == 1
    (fake,) = service.fakes
    fake.weights.stale = True
    with pytest.raises(UnavailableError, match="is not believed"):
        await service.weights.update(update(publish(2), 2))


async def test_ranks_that_can_show_nothing_are_taken_at_their_word(
    make_service: MakeService, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    service = await start(make_service, FakeEngine(ranks=2))
    (fake,) = service.fakes
    fake.weights.stale, fake.weights.held = True, {}
    assert (await service.weights.update(update(publish(1), 1))).ready == 1
    assert "cannot show its tensors" in caplog.text


async def test_a_service_whose_folder_has_gone_says_so_and_takes_the_next_version(
    make_service: MakeService, publish: Publish, model: Path
) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    liar, honest = service.fakes
    for lost in (model, publish(1)):  # that of the start, and that of a run which has ended
        number = service.weights.version
        (lost / "model.safetensors").unlink()
        await service.start()
        state = service.weights.state()
        assert (state.version, state.ready) == (number, 2)
        assert state.lost == str(lost / "model.safetensors")
        assert await versions(service) == {number}
        liar.weights.stale = True
        state = await service.weights.update(update(publish(number + 1), number + 1))
        assert (state.version, state.ready, state.lost) == (number + 1, 1, "")
        assert "is not believed" in service.pool.members[0].reason, "as with the folder there"
        assert (held(honest), await versions(service)) == (number + 1, {number + 1})
        liar.weights.stale = False
        await service.start()
        assert service.weights.state().ready == 2


async def test_an_engine_that_restarts_without_the_folder_says_what_is_lost(
    make_service: MakeService, publish: Publish
) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    await service.weights.update(update(publish(1), 1))
    folder = publish(1)
    shutil.rmtree(folder)
    restarted, _ = service.fakes
    restarted.version, restarted.refuse = "0", {str(folder)}
    for _ in range(3):  # at the last look it waits before it tries again
        await service.start()
        assert service.weights.state().ready == 1
        assert f"{folder}/model.safetensors has gone" in service.pool.members[0].reason


async def test_a_service_that_restarted_says_that_the_folder_of_its_learner_is_lost(
    make_service: MakeService, publish: Publish, tmp_path: Path
) -> None:
    runs = tmp_path / "artifacts" / "weights"
    folder = runs / "run" / "policy" / "v000007"
    elsewhere = tmp_path / "engine"  # which only the engine's machine may have
    for gone, lost in ((folder, str(folder)), (elsewhere, "")):
        service = make_service(FakeEngine(version="7"), published=runs)
        service.fakes[0].model_path = str(gone)
        await service.start()
        state = service.weights.state()
        assert (state.version, state.ready, state.lost) == (7, 1, lost)


async def test_a_version_that_was_written_again_is_loaded_again(
    make_service: MakeService, publish: Publish
) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    await service.weights.update(update(publish(1), 1))
    fill(publish(1), 5)
    write_manifest(publish(1), {"version": 1})
    state = await service.weights.update(update(publish(1), 1))
    assert (state.version, state.ready) == (1, 2)
    assert [held(fake) for fake in service.fakes] == [5.0, 5.0]
    fill(publish(1), 6)
    unannounced = WeightsUpdate(version=1, uri=str(publish(1)))
    assert await service.weights.update(unannounced) == state
    assert [held(fake) for fake in service.fakes] == [5.0, 5.0]


async def test_rollback_gets_next_number(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    for version in (1, 2):
        await service.weights.update(update(publish(version), version))
    state = await service.weights.rollback(1)
    assert (state.version, state.uri, state.ready) == (3, str(publish(1)), 2)
    assert [held(fake) for fake in service.fakes] == [1.0, 1.0]
    assert await versions(service) == {3}
    assert await service.weights.rollback(3) == state, "the active version is there already"


async def test_rollback_after_restart(make_service: MakeService, publish: Publish) -> None:
    service = make_service(FakeEngine(version="2"))
    (fake,) = service.fakes
    publish(1)
    fake.model_path = str(publish(2))
    fake.weights.load(fake.model_path)
    await service.start()
    with pytest.raises(NotFoundError):
        await service.weights.rollback(9)
    (publish(1) / "model.safetensors").rename(publish(1) / "aside")
    with pytest.raises(WeightsError):
        await service.weights.rollback(1)
    assert (service.weights.state().version, held(fake)) == (2, 2.0)
    (publish(1) / "aside").rename(publish(1) / "model.safetensors")
    assert (await service.weights.rollback(1)).uri == str(publish(1))


async def test_named_folder_without_its_weights(
    make_service: MakeService, publish: Publish
) -> None:
    service = make_service(FakeEngine(version="7"), FakeEngine())
    publish(1)
    service.fakes[0].weights.load(
        str(publish(1))
    )  # by a broadcast: its path is still that of its start
    await service.start()
    state = service.weights.state()
    assert (state.version, state.uri, state.ready) == (7, "", 1)
    assert "publish it again" in service.pool.members[1].reason
    assert (await service.weights.update(update(publish(1), 8))).ready == 2


@pytest.mark.parametrize("way", ["disk", "distributed"])
@pytest.mark.parametrize("shows", [True, False])
async def test_a_service_that_restarted_finds_the_folder_of_weights_that_were_broadcast(
    make_service: MakeService, publish: Publish, tmp_path: Path, way: Way, shows: bool
) -> None:
    """The engine names the folder of its start. Where it shows no tensors the way says which of the two it is."""
    publish(0)
    runs = tmp_path / "artifacts" / "weights"
    for run, version in (("run-a", 6), ("run-b", 7)):
        made = shutil.copytree(publish(version), runs / run / "policy" / "v000007")
        write_manifest(made, {"version": 7})
    service = make_service(
        FakeEngine(version="7"), FakeEngine(), published=runs, loader=WeightLoader(way=way)
    )
    broadcast, crashed = service.fakes
    broadcast.weights.load(str(publish(7)))
    if not shows:
        broadcast.weights.held = {}
    os.utime(runs / "run-a" / "policy" / "v000007", (1, 1))
    await service.start()
    state = service.weights.state()
    named = not shows and way == "disk"
    expected = broadcast.model_path if named else str(runs / "run-b" / "policy" / "v000007")
    assert (state.version, state.uri, state.ready) == (7, expected, 2)
    assert held(crashed) == (0.0 if named else 7.0), "it is not to be published again"


async def test_paused_engine_is_continued(make_service: MakeService, publish: Publish) -> None:
    """SGLang calls itself not ready while it is paused, and would for ever if the process that paused it has ended."""
    service = make_service(FakeEngine())
    publish(0)
    fake = service.fakes[0]
    fake.paused = "retract"
    fake._go.clear()
    await service.start()
    assert service.weights.state().ready == 1
    assert await versions(service) == {0}
