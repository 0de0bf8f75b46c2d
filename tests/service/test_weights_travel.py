"""Weights from a published folder into a running engine, by every way, and what becomes of weights that are no good."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import torch

from services.local_engine.app import create_app as create_engine_app
from services.policy.app import create_app
from services.policy.engines.pool import Member, Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.adapters import Version
from services.policy.weights.broadcast import BroadcastRank, Broadcasts
from services.policy.weights.loader import Way, WeightLoader
from services.policy.weights.sync import WeightSync
from services.trainer.learner.parallel.broadcast import Broadcaster, _Sending, create_api, open_api
from tests.fake_engine import FakeEngine
from tests.unit.local_engine.models import (
    build_folder,
    edit_weights,
    new_engine,
    plain_logprobs,
    plain_model,
)
from triforge.store.manifests import write_manifest
from triforge.supervisor.ports import free_port
from triforge.types import (
    BroadcastOffer,
    ChatMessage,
    GenerateReply,
    GenerateRequest,
    Sampling,
    WeightsUpdate,
)

ROOT = Path(__file__).parents[2]
ADMIN = "admin"
GO = GenerateRequest(
    messages=(ChatMessage(role="user", content="w1 w2"),), sampling=Sampling(max_new_tokens=6)
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`weights/v000001` to 3: the same model with other random weights, each with its manifest."""
    parent = tmp_path_factory.mktemp("artifacts") / "weights"
    for number in range(4):
        folder = build_folder(parent / f"v{number:06d}", seed=number)
        write_manifest(folder, {"version": number})
    return parent


def update_of(folder: Path, version: int, handover: tuple[str, ...] | None = None) -> WeightsUpdate:
    digest = ""
    if (folder / "manifest.json").is_file():
        digest = write_manifest(folder, {"version": version})
    return WeightsUpdate(version=version, uri=str(folder), digest=digest, handover=handover)


@pytest.fixture(scope="module")
def engine_url(folders: Path) -> Iterator[str]:
    """A local engine in a process of its own."""
    port = free_port()
    log = (folders / "log").open("wb")
    command = [sys.executable, "-m", "services.local_engine", "--model-path", str(folders / "v000000"),
               "--port", str(port), "--weight-version", "0", "--admin-api-key", ADMIN]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (folders / "log").read_text()
            try:
                httpx.get(f"{url}/ready")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)
        log.close()


class Service:
    """A policy service around some engines."""

    def __init__(self, engines: list[SGLangEngine], model: Path, way: Way) -> None:
        self.pool = Pool(engines)
        loader = WeightLoader(way=way, timeout_s=20.0)
        self.weights = WeightSync(
            self.pool, role="policy", model_path=str(model), loader=loader,
            broadcasts=Broadcasts(admin_api_key=ADMIN),
        )  # fmt: skip
        self.gateway = Gateway(self.pool, self.weights)

    async def answer(self) -> GenerateReply:
        return (await self.gateway.generate([GO]))[0]


@asynccontextmanager
async def service_at(url: str, model: Path, way: Way) -> AsyncIterator[Service]:
    service = Service([SGLangEngine(url, admin_api_key=ADMIN)], model, way)
    try:
        await service.weights.look()
        yield service
    finally:
        await service.pool.close()


@contextmanager
def learner(folders: Path, timeout_s: float = 20.0) -> Iterator[tuple[str, ...]]:
    """The learner's API, with buckets so small that the tiny model needs several."""
    broadcaster = Broadcaster(
        folders, host="127.0.0.1", device=torch.device("cpu"), backend="gloo", timeout_s=timeout_s,
        bucket_bytes=4000,
    )  # fmt: skip
    with open_api(
        broadcaster, host="127.0.0.1", listen="127.0.0.1", admin_api_key=ADMIN
    ) as address:
        yield (address,)


async def holds(service: Service, folder: Path, version: int) -> None:
    """Pass if what is sampled now comes from the weights of a folder."""
    reply = await service.answer()
    (output,) = reply.outputs
    assert {span.version for span in output.versions} == {version}
    wanted = plain_logprobs(plain_model(folder), list(reply.prompt_ids), list(output.ids))
    assert list(output.logprobs) == pytest.approx(wanted, abs=1e-4)


async def leave_session_open(engine_url: str) -> None:
    """As a service that died in the middle of an update does."""
    keys = {"authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(base_url=engine_url, headers=keys) as http:
        (await http.post("/begin_weight_update", json={})).raise_for_status()


async def test_by_every_way_the_published_weights_are_those_that_serve(
    engine_url: str, folders: Path
) -> None:
    ways: list[Way] = ["disk", "distributed"]
    with learner(folders) as handover:
        for number, way in enumerate(ways, start=1):
            async with service_at(engine_url, folders / "v000000", way) as service:
                folder = folders / f"v{number:06d}"
                if way == "distributed":
                    await leave_session_open(engine_url)
                state = await service.weights.update(update_of(folder, number, handover))
                assert (
                    state.version,
                    state.ready,
                    int(service.pool.metrics.broadcasts_missed._value.get()),
                ) == (number, 1, 0)
                await holds(service, folder, number)
                named = (await service.pool.members[0].engine.info()).model_path
                assert (named == str(folder)) == (way == "disk"), "no other way goes by the disk"


async def test_without_a_learner_to_receive_from_the_folder_is_read(
    engine_url: str, folders: Path
) -> None:
    gone = (f"http://127.0.0.1:{free_port()}",)
    async with service_at(engine_url, folders / "v000000", "distributed") as service:
        live = service.weights.state().version
        await service.weights.update(update_of(folders / "v000001", live + 1, gone))
        await holds(service, folders / "v000001", live + 1)


async def test_an_engine_that_refuses_to_join_sends_those_of_its_group_to_the_folder_at_once(
    engine_url: str, folders: Path
) -> None:
    stranger = FakeEngine(model_path=str(folders / "v000000"))
    stranger.weights.load(stranger.model_path)
    with learner(folders) as handover:
        engines = [
            SGLangEngine(engine_url, admin_api_key=ADMIN),
            SGLangEngine("http://fake", transport=httpx.ASGITransport(stranger)),
        ]
        service = Service(engines, folders / "v000000", "distributed")
        await service.weights.look()
        live = service.weights.state().version
        await service.weights.update(update_of(folders / "v000003", live + 1))
        assert service.weights.state().ready == 2
        async with asyncio.timeout(15.0):  # the learner's patience is 20 s
            state = await service.weights.update(update_of(folders / "v000002", live + 2, handover))
        assert (state.ready, int(service.pool.metrics.broadcasts_missed._value.get())) == (2, 2)
        await service.pool.members[1].engine.close()
        service.pool.exclude(service.pool.members[1], "the test looks at the other one")
        await holds(service, folders / "v000002", live + 2)
        await service.pool.close()


async def test_no_engine_is_sent_to_a_place_without_a_listener(folders: Path) -> None:
    offer = BroadcastOffer(
        address="127.0.0.1", port=free_port(), group="g", backend="gloo", world_size=2, buckets=()
    )
    left: list[int] = []

    async def leave() -> None:
        left.append(1)

    fake = FakeEngine(model_path=str(folders / "v000000"))
    engine = SGLangEngine("http://fake", transport=httpx.ASGITransport(fake))
    wanted = Version(1, str(folders / "v000001"))
    result = await WeightLoader(way="distributed").load(
        Member(engine), wanted, None, BroadcastRank((offer,), 1, leave)
    )
    assert (result.failure, result.missed_broadcast, left) == (None, True, [1])
    assert "/init_weights_update_group" not in fake.paths()


# ---- what is refused, at the service's own API, with an engine in this process ----


@asynccontextmanager
async def apis(folders: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    engine = new_engine(folders / "v000000")
    engine.start()
    app = create_engine_app(engine=engine, served_name="tiny", admin_api_key=ADMIN)
    client = SGLangEngine("http://engine", admin_api_key=ADMIN, transport=httpx.ASGITransport(app))
    service = Service([client], folders / "v000000", "disk")
    await service.weights.look()
    own = create_app(gateway=service.gateway, role="policy", admin_api_key=ADMIN)
    key = {"authorization": f"Bearer {ADMIN}"}
    transport = httpx.ASGITransport(own, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://service", headers=key
        ) as http:
            yield http, service
    finally:
        engine.stop()


def spoil(key: str, value: object) -> Callable[[Path], object]:
    """A change of one field of config.json."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {key: value}))

    return change


def nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"][3] = float("nan")


BAD: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object] | None, Callable[[Path], object] | None, str]] = {
    "unknown path": (None, shutil.rmtree, "expected a model folder with config.json"),
    "architecture": (None, spoil("model_type", "gpt2"), "model_type is 'gpt2', expected 'llama'"),
    "NaN": (nan, None, "tensor model.norm.weight holds values that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_bad_weights_are_a_problem_document_and_the_old_ones_serve_on(
    folders: Path, tmp_path: Path, case: str
) -> None:
    change, damage, sentence = BAD[case]
    folder = edit_weights(folders / "v000001", tmp_path / "bad", change or (lambda _: None))
    (folder / "manifest.json").unlink()
    if damage is not None:
        damage(folder)
    async with apis(folders) as (http, service):
        reply = await http.post("/v1/weights", json={"version": 1, "uri": str(folder)})
        assert reply.status_code == 422
        assert reply.headers["content-type"] == "application/problem+json"
        assert sentence in reply.json()["detail"]
        assert str(folder) in reply.json()["detail"]
        await holds(service, folders / "v000000", 0)


async def test_a_rollback_at_the_api_is_one_call(folders: Path) -> None:
    async with apis(folders) as (http, service):
        for version in (1, 2):
            update = update_of(folders / f"v{version:06d}", version)
            assert (await http.post("/v1/weights", json=update.model_dump())).status_code == 200
        reply = await http.post("/v1/weights/rollback", json={"version": 1})
        assert (reply.status_code, reply.json()["version"]) == (200, 3)
        await holds(service, folders / "v000001", 3)
        reply = await http.post("/v1/weights/rollback", json={"version": 99})
        assert reply.status_code == 404
        assert (
            "given version 99, expected one that this service has served" in reply.json()["detail"]
        )
        refused = {"authorization": "Bearer wrong"}
        for path, body in (("", {"version": 9, "uri": "/x"}), ("/rollback", {"version": 1})):
            reply = await http.post(f"/v1/weights{path}", json=body, headers=refused)
            assert reply.status_code == 401


async def test_a_learners_api_sends_nothing_but_published_weights(
    folders: Path, tmp_path: Path
) -> None:
    broadcaster = Broadcaster(
        folders, host="127.0.0.1", device=torch.device("cpu"), backend="gloo", timeout_s=5.0
    )
    transport = httpx.ASGITransport(create_api(broadcaster, admin_api_key=ADMIN))
    key = {"authorization": f"Bearer {ADMIN}"}
    elsewhere = build_folder(tmp_path / "elsewhere")
    cases = [
        ({"uri": str(elsewhere), "receivers": 1}, key, 422, "expected a folder below"),
        ({"uri": str(folders / "v000009"), "receivers": 1}, key, 422, "cannot be read"),
        ({"uri": str(folders / "v000001"), "receivers": 1, "digest": "0"}, key, 422, "expected 0"),
        ({"uri": str(folders / "v000001"), "receivers": 1}, {}, 401, "TRIFORGE_ADMIN_API_KEY"),
    ]
    async with httpx.AsyncClient(transport=transport, base_url="http://learner") as http:
        for body, headers, status, sentence in cases:
            reply = await http.post("/v1/broadcasts", json=body, headers=headers)
            assert (reply.status_code, sentence in reply.json()["detail"]) == (status, True)
        assert (await http.delete("/v1/broadcasts/none", headers=key)).status_code == 404


def test_a_bucket_without_a_receiver_ends_the_broadcast_and_not_the_learner(folders: Path) -> None:
    """As NCCL has it: the work is never complete, and waiting for it would return at once."""

    class Hangs:
        aborted = False

        def is_completed(self) -> bool:
            return False

        def wait(self) -> None:
            raise AssertionError("it is not sent")

        def abort(self) -> None:
            self.aborted = True

    sending = _Sending(
        [folders / "v000001" / "model.safetensors"], [], group="g", size=2, backend="gloo",
        device=torch.device("cpu"), timeout=timedelta(milliseconds=20),
    )  # fmt: skip
    sending._group = group = Hangs()
    with pytest.raises(RuntimeError, match=r"not taken within 0.02 s"):
        sending._complete(group)
    assert group.aborted
