"""Versions that are adapters: loaded while requests run, shown to be applied, named by requests, unloaded when unused."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.policy.weights.adapters import Adapters, MixedError, Version
from tests.fake_engine import FakeEngine, Floats, write_tensors
from tests.unit.policy.conftest import GO, MakeService, start, versions
from triforge.errors import PolicyError, WeightsError
from triforge.store.manifests import write_manifest
from triforge.store.model_digest import model_digest
from triforge.types import VersionSpan, WeightsUpdate

LAYER = "model.layers.0.self_attn.q_proj"
SHAPES = {f"{LAYER}.weight": (6, 4), "model.norm.weight": (4,)}
Publish = Callable[..., WeightsUpdate]


TENSORS: dict[str, Floats] = {
    f"base_model.model.{LAYER}.lora_A.weight": np.ones((2, 4), np.float32),
    f"base_model.model.{LAYER}.lora_B.weight": np.ones((6, 2), np.float32),
}


def fill(folder: Path, value: float) -> Path:
    write_tensors(folder, {n: np.full(s, value, np.float32) for n, s in SHAPES.items()})
    return folder


@pytest.fixture
def publish(model: Path, tmp_path: Path) -> Publish:
    """Makes the folder of an adapter and its update; `model` is the base unless another one is given."""
    fill(model, 0.0)

    def folder(version: int, source: Path = model, **about: Any) -> WeightsUpdate:
        made = shutil.copytree(source, tmp_path / "runs" / f"v{version:06d}")
        write_tensors(made, TENSORS)
        (made / "model.safetensors").rename(made / "adapter_model.safetensors")
        settings = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
        (made / "adapter_config.json").write_text(json.dumps(settings))
        probe = {"ids": [5, 6, 7], "logprobs": [-0.5, -float(version)]}
        (made / "probe.json").write_text(json.dumps(probe))
        named = {"uri": str(source), "digest": model_digest(source)}
        digest = write_manifest(made, {"version": version, "base": named} | about)
        return WeightsUpdate(version=version, uri=str(made), digest=digest)

    return folder


def sent_with(fake: FakeEngine) -> list[str | None]:
    """The adapters of the requests that services' clients made."""
    return [
        body.get("lora_path")
        for path, body in fake.calls
        if path == "/generate" and "logprob_start_len" not in body
    ]


async def test_adapter_goes_live_without_pause(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(version="4"), FakeEngine(version="4"))
    assert await versions(service) == {4}
    state = await service.weights.update(publish(7))
    assert (state.version, state.ready) == (7, 2)
    assert await versions(service) == {7}
    for fake in service.fakes:
        assert set(sent_with(fake)) <= {None, "v000007"}
        assert fake.version == "4"
        assert not {"/pause_generation", "/update_weights_from_disk"} & set(fake.paths())
    streamed = [piece async for _, piece in service.gateway.stream(GO)]
    assert {span.version for span in streamed[-1].versions} == {7}
    await service.start()
    assert service.weights.state().ready == 2


async def test_running_answer_keeps_its_adapter(
    make_service: MakeService, publish: Publish
) -> None:
    service = await start(make_service, FakeEngine())
    (fake,) = service.fakes
    await service.weights.update(publish(1))
    fake.wait_at = 1
    running = asyncio.create_task(versions(service, 1))
    await fake.reached.wait()
    fake.wait_at = -1
    await service.weights.update(publish(2))
    assert (await versions(service), set(fake.adapters.held)) == ({2}, {"v000001", "v000002"})
    fake._changed.set()
    assert await running == {1}
    await service.start()
    assert fake.adapters.unloaded == ["v000001"]


async def test_adapter_not_applied_is_excluded(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    liar, honest = service.fakes
    liar.adapters.stale = True
    state = await service.weights.update(publish(1))
    assert (state.version, state.ready) == (1, 1)
    assert "is not believed" in service.pool.members[0].reason
    assert await versions(service, 6) == {1}
    assert sent_with(liar) == []
    assert liar.adapters.held == {}
    liar.adapters.stale = False
    await service.start()
    assert service.weights.state().ready == 2
    assert set(honest.adapters.held) == set(liar.adapters.held) == {"v000001"}


async def test_engine_that_was_away_unloads_when_it_serves_again(
    make_service: MakeService, publish: Publish
) -> None:
    service = await start(make_service, FakeEngine(), FakeEngine())
    away, other = service.fakes
    await service.weights.update(publish(1))
    away.adapters.stale = True
    assert (await service.weights.update(publish(2))).ready == 1
    assert (other.adapters.unloaded, "v000001" in away.adapters.held) == (["v000001"], True)
    away.adapters.stale = False
    await service.start()
    await service.start()
    assert service.weights.state().ready == 2
    assert set(away.adapters.held) == set(other.adapters.held) == {"v000002"}
    assert other.adapters.unloaded == ["v000001"]


async def test_a_base_that_does_not_serve_is_loaded_first_and_no_token_is_of_neither(
    make_service: MakeService, publish: Publish, model: Path, tmp_path: Path
) -> None:
    service = await start(make_service, FakeEngine(), wait_s=1.0)
    (fake,) = service.fakes
    await service.weights.update(publish(1))
    fake.wait_at = 1
    running = asyncio.create_task(versions(service, 1))
    await fake.reached.wait()
    fake.wait_at = -1
    other = fill(shutil.copytree(model, tmp_path / "other"), 5.0)
    state = await service.weights.update(publish(2, other))
    assert (state.version, fake.model_path, fake.version) == (2, str(other), "2")
    assert float(fake.weights.held[f"{LAYER}.weight"][0, 0]) == 5.0
    # What ran meanwhile had tokens of the old adapter over the new base, and was asked for again.
    assert await running == {2}
    await service.weights.update(publish(3, other))
    assert (await versions(service), fake.version) == ({3}, "2")
    assert fake.paths().count("/update_weights_from_disk") == 1


async def test_an_engine_that_was_started_again_gets_base_and_adapter_before_it_serves(
    make_service: MakeService, publish: Publish, model: Path, tmp_path: Path
) -> None:
    service = await start(make_service, FakeEngine(version="3"), FakeEngine(version="3"))
    again, other = service.fakes
    await service.weights.update(publish(4))
    again.version, again.model_path = "0", "/models/fake"
    again.adapters.held.clear()
    assert await versions(service, 8) == {4}  # its requests are sent elsewhere
    await service.start()
    assert service.weights.state().ready == 2
    assert (again.version, again.model_path) == ("3", str(model))
    assert set(again.adapters.held) == {"v000004"}
    other.gone = True
    assert await versions(service) == {4}


async def test_lost_adapter_is_loaded_again(make_service: MakeService, publish: Publish) -> None:
    service = await start(make_service, FakeEngine())
    (fake,) = service.fakes
    await service.weights.update(publish(1))
    fake.adapters.held.clear()
    with pytest.raises(PolicyError, match="never been loaded"):
        await versions(service)
    await service.start()
    assert await versions(service) == {1}
    assert "/update_weights_from_disk" not in fake.paths()


async def test_rollback_to_adapter(
    make_service: MakeService, publish: Publish, model: Path
) -> None:
    service = await start(make_service, FakeEngine())
    (fake,) = service.fakes
    first = publish(1)
    await service.weights.update(first)
    await service.weights.update(publish(2))
    state = await service.weights.rollback(1)
    assert (state.version, state.uri) == (3, first.uri)
    assert await versions(service) == {3}
    assert fake.adapters.held == {"v000003": first.uri}
    assert (await service.weights.rollback(0)).uri == str(model)  # and the base alone
    assert (await versions(service), fake.version) == ({4}, "4")
    assert sent_with(fake)[-1] is None


async def test_newest_held_adapter(
    make_service: MakeService, publish: Publish, model: Path
) -> None:
    engines = [FakeEngine(version="4"), FakeEngine(version="4")]
    for fake in engines:
        fake.adapters.held = {"v000005": publish(5 + 2 * engines.index(fake)).uri, "mine": "/mine"}
    engines[0].adapters.held["v000006"] = publish(6).uri
    service = await start(make_service, *engines)
    assert (service.weights.version, service.weights.state().ready) == (6, 2)
    assert await versions(service) == {6}


async def test_damaged_adapter(make_service: MakeService, publish: Publish, model: Path) -> None:
    service = await start(make_service, FakeEngine())
    calls = len(service.fakes[0].calls)
    update = publish(1)
    file = Path(update.uri) / "adapter_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(WeightsError, match=r"adapter_model\.safetensors has \d+ bytes, expected"):
        await service.weights.update(update)
    with pytest.raises(WeightsError, match=r"adapter_model\.safetensors: is truncated"):
        await service.weights.update(update.model_copy(update={"digest": ""}))
    file.write_bytes(whole)
    (Path(update.uri) / "probe.json").write_text('{"ids": [1], "logprobs": []}')
    with pytest.raises(WeightsError, match=r"probe\.json: expected ids and one"):
        await service.weights.update(update.model_copy(update={"digest": ""}))
    with pytest.raises(WeightsError, match=r"manifest\.json: names no base"):
        await service.weights.update(publish(2, base=None))
    missing = {"uri": "/nowhere", "digest": "x"}
    with pytest.raises(WeightsError, match="model folder /nowhere: cannot be read"):
        await service.weights.update(publish(3, base=missing))
    update = publish(4)
    fill(model, 3.0)
    with pytest.raises(WeightsError, match=r"its base .* has changed"):
        await service.weights.update(update)
    assert len(service.fakes[0].calls) == calls
    assert service.weights.version == 0


def span(version: int, start: int = 0, end: int = 2) -> VersionSpan:
    return VersionSpan(version=version, start=start, end=end)


def test_tokens_have_the_version_of_their_adapter_or_the_answer_is_mixed() -> None:
    adapters = Adapters()
    used = Version(9, "", base=Version(4, ""), adapter="v000009")
    assert adapters.label([span(4)], used) == (span(9),)
    assert adapters.label([], used) == ()
    assert adapters.label([span(3)], None) == (span(3),)
    with pytest.raises(MixedError):
        adapters.label([span(4), span(5, 2, 3)], used)
    adapters.hold_base(10)
    with pytest.raises(MixedError):
        adapters.label([span(3), span(10, 2, 3)], None)
