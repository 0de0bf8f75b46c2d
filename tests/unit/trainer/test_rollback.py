"""Going back to an older version: under a new number, with its checkpoint, or not at all."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from services.trainer.app import create_app
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.loop.engines import Engines
from services.trainer.runs.rollback import RunRollback, roll_back
from services.trainer.runs.routes import weights
from services.trainer.runs.runs import Runs
from services.trainer.runs.store import RunStore
from tests.unit.trainer.conftest import VERSION, MakeBatch, sampled_rows
from triforge.clients.trainer import TrainerClient
from triforge.config import Settings
from triforge.errors import ConflictError, NotFoundError, UnavailableError, WeightsError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.store.manifests import read_manifest, verify_manifest
from triforge.types import RunState, WeightsRecord, WeightsState, WeightsUpdate

FIRST, SECOND = VERSION + 1, VERSION + 2


@dataclass
class Service:
    """A policy service that serves every update."""

    version: int
    uri: str
    away: bool = False
    refuses: bool = False
    served: list[WeightsUpdate] = field(default_factory=list)

    async def weights(self) -> WeightsState:
        if self.away:
            raise UnavailableError("away")
        return WeightsState(role="policy", version=self.version, uri=self.uri, engines=1, ready=1)

    async def update_weights(self, update: WeightsUpdate) -> WeightsState:
        if self.refuses:
            raise WeightsError("the engines refuse it")
        self.served.append(update)
        self.version, self.uri = update.version, update.uri
        return await self.weights()


@dataclass
class Scene:
    """A stopped run with two trained versions of its policy on the checkpoints."""

    run: RunState
    store: RunStore
    artifacts: ArtifactStore
    checkpoints: CheckpointStore
    service: Service
    initial: Path

    @property
    def runs(self) -> Runs:
        nothing: Any = None
        return Runs(
            store=self.store, pools=nothing, broker=nothing, artifacts=self.artifacts, settings=Settings(),
            apis={"policy": self.service},
        )  # fmt: skip

    async def back(self, version: int) -> RunState:
        request = RunRollback(role="policy", version=version)
        return await roll_back(self.runs, self.run.id, request)

    def rows(self) -> dict[int, WeightsRecord]:
        return {row.version: row for row in self.store.weights_of(self.run.id, "policy")}


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, model_folder: Path, make_batch: MakeBatch
) -> Scene:
    store = RunStore(open_database(f"sqlite:///{tmp_path / 'runs.sqlite'}"))
    run = store.create(
        name="run", pool_id="pool", config={"run": {"steps": 9}, "methods": {"rloop": {}}}
    )
    artifacts = ArtifactStore(getattr(request, "param", "{}/artifacts").format(tmp_path))
    checkpoints = CheckpointStore(artifacts, run.id, "policy")
    paths = {"policy": str(model_folder), "reward": str(model_folder)}
    state = {"paths": paths, "base": {"policy": VERSION, "reward": VERSION}}
    store.add_weights(run.id, "policy", VERSION, str(model_folder), "")
    learner = Learner.fresh(model_folder)
    for step in (1, 2):
        batch = make_batch(step=step, version=VERSION + step - 1)
        rows = sampled_rows(model_folder, 16, seed=step)
        ready, _ = checkpoints.publish(learner, batch, learner.train(batch, rows), keep=5)
        store.add_weights(run.id, "policy", ready.version, ready.uri, ready.digest)
    store.begin(run.id, state=state, versions={"policy": SECOND, "reward": VERSION})
    store.set_status(run.id, "stopped")
    service = Service(SECOND, ready.uri)
    return Scene(store.get(run.id), store, artifacts, checkpoints, service, model_folder)


async def test_the_older_version_serves_under_the_next_number_and_is_recorded(scene: Scene) -> None:
    run = await scene.back(FIRST)
    assert (run.policy_version, run.reward_version) == (SECOND + 1, VERSION)
    row = scene.rows()[SECOND + 1]
    assert row.origin == FIRST
    (update,) = scene.service.served
    assert (update.version, update.uri, update.digest) == (SECOND + 1, row.uri, row.digest)
    assert verify_manifest(Path(row.uri)) == row.digest
    about = read_manifest(Path(row.uri))
    assert (about["version"], about["origin"]) == (SECOND + 1, FIRST)
    old = Path(scene.rows()[FIRST].uri) / "model.safetensors"
    assert (Path(row.uri) / "model.safetensors").read_bytes() == old.read_bytes()


async def test_the_learner_goes_on_from_the_older_checkpoint_and_not_from_the_newer_one(
    scene: Scene, make_batch: MakeBatch
) -> None:
    wanted = scene.checkpoints.load(FIRST, scene.initial)
    newer = scene.checkpoints.load(SECOND, scene.initial)
    await scene.back(FIRST)
    batch = make_batch(step=3, version=SECOND + 1)
    found = scene.checkpoints.start_of(batch)
    for name, tensor in found.model.parameters().items():
        assert torch.equal(tensor, wanted.model.parameters()[name])
    assert found.counters == wanted.counters != newer.counters
    moments = wanted.saved().tensors["optimizer"]
    assert all(torch.equal(t, moments[n]) for n, t in found.saved().tensors["optimizer"].items())


async def test_going_back_to_the_initial_folder_starts_afresh(
    scene: Scene, make_batch: MakeBatch
) -> None:
    run = await scene.back(VERSION)
    assert run.policy_version == SECOND + 1
    assert scene.rows()[SECOND + 1].uri == str(scene.initial)
    base = scene.store.run_state(run.id)["base"]["policy"]
    batch = make_batch(step=3, version=SECOND + 1, base=base)
    found = scene.checkpoints.start_of(batch)
    assert found.counters.updates == 0


@pytest.mark.parametrize("status", ["queued", "running", "stopping"])
async def test_a_run_at_work_is_not_rolled_back(scene: Scene, status: str) -> None:
    scene.store.set_status(scene.run.id, status)  # type: ignore[arg-type]
    with pytest.raises(ConflictError, match=f"is {status}, expected a stopped"):
        await scene.back(FIRST)
    assert scene.service.served == []


async def test_a_version_that_is_damaged_or_gone_is_named(scene: Scene) -> None:
    (Path(scene.rows()[FIRST].uri) / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(WeightsError, match=r"model\.safetensors has 3 bytes"):
        await scene.back(FIRST)
    scene.checkpoints.checkpoints.rename(scene.checkpoints.checkpoints.with_name("elsewhere"))
    with pytest.raises(WeightsError, match=r"run.keep_checkpoints says how many"):
        await scene.back(SECOND)
    assert scene.store.get(scene.run.id).policy_version == SECOND


@pytest.mark.parametrize("scene", ["{0}/artifacts#{0}/memory"], indirect=True)
async def test_versions_of_a_lost_memory_come_from_their_copies(scene: Scene) -> None:
    shutil.rmtree(scene.checkpoints.weights)
    await scene.back(FIRST)
    row = scene.rows()[SECOND + 1]
    assert verify_manifest(Path(row.uri)) == row.digest
    listed = {one.version: one for one in weights(scene.run.id, scene.runs).items}
    disk = f"{scene.artifacts.root}/weights/{scene.run.id}/policy"
    assert listed[SECOND + 1].uri == f"{disk}/v{SECOND + 1:06d}"
    assert all(one.kept for one in listed.values())


LOOPS = {"loop": 1, "first": SECOND}
WATCHED = {"collapse/spread": [[n, 1.0] for n in range(12)], "eval/sampled": [[0, 0.5]]}


@pytest.mark.parametrize(
    ("back", "first"), [(VERSION, None), (FIRST, SECOND + 1), (SECOND, SECOND)]
)
async def test_loops_and_the_monitor_forget_what_was_given_up(
    scene: Scene, back: int, first: int | None
) -> None:
    scene.store.note(scene.run.id, "rloop", LOOPS)
    scene.store.note(scene.run.id, "starpo", WATCHED)
    await scene.back(back)
    found = scene.store.run_state(scene.run.id)
    assert found["rloop"] == {"loop": 1, "first": first}
    assert found["starpo"] == {"collapse/spread": [[n, 1.0] for n in range(10)], "eval/sampled": []}  # fmt: skip


async def test_what_the_service_refuses_has_not_happened(scene: Scene) -> None:
    scene.store.note(scene.run.id, "rloop", LOOPS)
    scene.store.note(scene.run.id, "starpo", WATCHED)
    before = scene.store.run_state(scene.run.id)
    scene.service.refuses = True
    for version in (FIRST, VERSION):
        with pytest.raises(WeightsError, match="the engines refuse it"):
            await scene.back(version)
    run = scene.store.get(scene.run.id)
    assert (run.policy_version, scene.store.run_state(run.id)) == (SECOND, before)
    assert sorted(scene.rows()) == [VERSION, FIRST, SECOND]
    assert scene.checkpoints.newest() == SECOND


async def test_a_service_that_is_away_or_serves_another_run_is_left_to_the_resume(
    scene: Scene,
) -> None:
    scene.service.away = True
    await scene.back(FIRST)
    scene.service.away, scene.service.version, scene.service.uri = (
        False,
        40,
        "/weights/other/policy/v000040",
    )
    run = await scene.back(FIRST)
    assert scene.service.served == []
    assert run.policy_version == 41


async def hold(scene: Scene) -> dict[str, int]:
    reward = Service(VERSION, str(scene.initial))
    parts: Any = SimpleNamespace(
        store=scene.store,
        artifacts=scene.artifacts,
        apis={"policy": scene.service, "reward": reward},
    )
    engines = Engines(parts, scene.run.id)
    engines.notes |= scene.store.run_state(scene.run.id)
    scene.store.add_weights(scene.run.id, "reward", VERSION, str(scene.initial), "")
    return dict(await engines.hold())


async def test_a_run_follows_a_service_that_was_rolled_back(
    scene: Scene, make_batch: MakeBatch
) -> None:
    scene.service.version, scene.service.uri = SECOND + 1, scene.rows()[FIRST].uri
    versions = await hold(scene)
    assert versions["policy"] == SECOND + 2 == scene.service.version
    assert scene.rows()[SECOND + 2].origin == FIRST
    assert scene.store.get(scene.run.id).policy_version == SECOND + 2
    batch = make_batch(step=3, version=SECOND + 2)
    found = scene.checkpoints.start_of(batch)
    assert found.counters == scene.checkpoints.load(FIRST, scene.initial).counters
    assert (await hold(scene))["policy"] == SECOND + 2, "and stays there"


async def test_the_same_weights_under_another_number_are_no_rollback(scene: Scene) -> None:
    scene.service.version, scene.service.uri = SECOND + 4, scene.rows()[SECOND].uri
    assert (await hold(scene))["policy"] == SECOND
    assert scene.service.served == []


async def test_over_rest_a_rollback_is_one_call(scene: Scene, tmp_path: Path) -> None:
    async def ready() -> None:
        return

    app = create_app(runs=scene.runs, orchestrator=None, ready=ready)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = TrainerClient("http://trainer", transport=transport)
    run = await client.roll_back(scene.run.id, "policy", FIRST)
    assert run.policy_version == SECOND + 1
    found = {row.version: row for row in await client.weights(scene.run.id)}
    assert (found[SECOND + 1].origin, found[SECOND + 1].kept) == (FIRST, True)
    with pytest.raises(NotFoundError, match="no policy weights of version 99"):
        await client.roll_back(scene.run.id, "policy", 99)
    await client.close()
