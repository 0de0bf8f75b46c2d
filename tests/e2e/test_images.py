"""Two steps of the loop with a model that sees, as policy and as judge: screenshots from the environment to the gradient.

In one process and without a broker: what is looked at is the way of the images and of the numbers that depend on them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
import torch

from demo.models.tiny_models import build_tiny_vision_model
from services.local_engine.app import create_app
from services.local_engine.detokenize import TextCodec
from services.local_engine.engine import Engine
from services.local_engine.model import load_model
from services.policy.engines.pool import Pool
from services.policy.engines.sglang import SGLangEngine
from services.policy.gateway import Gateway
from services.policy.weights.sync import WeightSync
from services.reward.scorers.votes import score
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from services.trainer.learner.learner import Learner, StepReport
from services.trainer.learner.weights.tensors import TENSORS, copy_companions, save_tensors
from tests.batches import train_batch
from tests.sections import flat_group
from triforge.algorithms.algorithm import resolve
from triforge.rollout.episode import judge_task, run_group
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.store.manifests import write_manifest
from triforge.store.rows import read_rows, write_rows
from triforge.store.step_records import export_step_records, write_step_records
from triforge.testing.pictures import png
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    JudgedGroup,
    Sampling,
    Task,
    TrainedRole,
    TrainRow,
    WeightsUpdate,
)
from triforge.vision.files import describe

pytestmark = pytest.mark.timeout(300)
WORDS = ("left", "right", "press", "see", "task", ";", ">", "?", r"\boxed{1}", r"\boxed{-1}")
TASK = Task(id="t", pool_id="p", slot="t", family="buttons", instruction="press left")
PRESET = resolve("rlanything", {"reward_band": "none"})
TURNS = 2


def screen(turn: int) -> bytes:
    return png(60 + 10 * turn, 90, colour=(40 * turn, 90, 10))


class Buttons:
    """Shows a screenshot a turn; solved by a last response whose letters add up to an even number, as chance has it."""

    def __init__(self) -> None:
        self._turn = 0

    def _seen(self) -> Observation:
        return Observation(text="see", images=(screen(self._turn),))

    async def reset(self, task: Task, *, seed: int) -> Reset:
        return Reset(observation=self._seen(), system="task")

    async def step(self, response: str) -> StepResult:
        self._turn += 1
        return StepResult(
            observation=self._seen(), action=response.strip() or "left", action_valid=True,
            done=self._turn == TURNS, success=sum(map(ord, response)) % 2 == 0,
        )  # fmt: skip

    async def close(self) -> None:
        return


class Role:
    """An engine, its policy service and its learner."""

    def __init__(self, role: TrainedRole, model: Path, store: ArtifactStore) -> None:
        self.role, self.initial, self.store, self.version = role, model, store, 0
        self.temperature = 5.0 if role == "reward" else 1.0  # a hot judge votes both ways
        engine_model, config = load_model(model)
        self.engine = Engine(
            engine_model, config, TextCodec(model), model, version="0", seed=len(role)
        )
        app = create_app(engine=self.engine, served_name=role)
        url = f"http://{role}"
        pool = Pool([SGLangEngine(url, transport=httpx.ASGITransport(app))], wait_s=0.0)
        self.sync = WeightSync(pool, role=role, model_path=str(model))
        self.gateway = Gateway(pool, self.sync, ImageStore(store))
        self.learner = Learner.fresh(model, images=ImageStore(store))

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        return (await self.gateway.generate([request]))[0]

    def train(self, step: int, rows: list[TrainRow]) -> StepReport:
        uri = write_rows(self.store, f"runs/run/batches/{step:05d}-{self.role}.parquet", rows)
        batch = train_batch(
            self.initial, batch_id=f"run-{step}-{self.role}", role=self.role, step=step, version=self.version,
            uri=uri, num_rows=len(rows), temperature=self.temperature,
            learner={"learning_rate": 1e-3, "updates_per_step": 1},
        )  # fmt: skip
        return self.learner.train(batch, read_rows(self.store, uri))

    async def publish(self) -> None:
        """Put the learner's weights live."""
        self.version += 1
        folder = Path(self.store.root) / "weights" / self.role / f"v{self.version:06d}"
        folder.mkdir(parents=True)
        copy_companions(self.initial, folder)
        tensors = {name: p.detach().clone() for name, p in self.weights().items()}
        save_tensors(tensors, folder / TENSORS)
        digest = write_manifest(folder, {"version": self.version})
        update = WeightsUpdate(version=self.version, uri=str(folder), digest=digest)
        assert (await self.sync.update(update)).version == self.version

    def weights(self) -> dict[str, torch.nn.Parameter]:
        return self.learner.model.parameters()


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "artifacts"))


@pytest.fixture
async def roles(tmp_path: Path, store: ArtifactStore) -> AsyncIterator[tuple[Role, Role]]:
    model = build_tiny_vision_model(tmp_path / "model", WORDS, seed=5)
    policy, reward = Role("policy", model, store), Role("reward", model, store)
    for role in (policy, reward):
        role.engine.start()
        await role.sync.look()
    yield policy, reward
    for role in (policy, reward):
        role.engine.stop()


async def played(step: int, policy: Role, reward: Role, keep: ImageStore) -> JudgedGroup:
    group = flat_group(
        group_id=f"g{step}", run_id="run", step=step, task_id="t", purpose="train", rollouts=6,
        votes=2, seed=step, sampling=Sampling(max_new_tokens=3), max_steps=TURNS, deadline_s=120,
        retries=0,
    )  # fmt: skip
    found = await run_group(Buttons, policy.generate, TASK, group, keep=keep.put)
    assert [t.outcome.error for t in found.trajectories] == [None] * 6
    sampling = Sampling(max_new_tokens=2, temperature=reward.temperature, regex=r" ?\\boxed\{-?1\}")
    job = judge_task(group, 0).model_copy(
        update={"sampling": sampling, "seed": step, "prompt": "terse"}
    )
    votes = [await score(t, job, reward.gateway.generate) for t in found.trajectories]
    return JudgedGroup(played=found, votes=tuple(votes))


def changed(before: dict[str, torch.Tensor], role: Role, part: str) -> bool:
    return any(
        not torch.equal(before[name], p) for name, p in role.weights().items() if part in name
    )


async def test_two_steps_with_screenshots_train_policy_and_judge_on_what_they_saw(
    roles: tuple[Role, Role], store: ArtifactStore, tmp_path: Path
) -> None:
    policy, reward = roles
    limits = Limits(max_tokens=1024, max_rows=0)
    uris = []
    for step in (0, 1):
        group = await played(step, policy, reward, ImageStore(store))
        samples = build_samples(
            [group], SampleOptions(algorithm=PRESET, players={"policy": (policy.version, limits)},             judging={"reward": (reward.version, limits)}, seed=step))  # fmt: skip
        uris.append(write_step_records(store, f"runs/run/steps/{step}.parquet", samples.records))
        for role, rows in ((policy, samples.rows["policy"]), (reward, samples.rows["reward"])):
            assert rows, (role.role, samples.reasons)
            assert all(row.images for row in rows)
            before = {name: p.detach().clone() for name, p in role.weights().items()}
            metrics = role.train(step, rows).metrics
            # of every sampled token that is trained on, by transformers with gradient and by the engine
            assert metrics["logprob_mismatch_max"] < 1e-4
            assert changed(before, role, "language_model")
            assert changed(before, role, "visual"), "the gradient reaches what looks at the images"
            await role.publish()
    assert (policy.version, reward.version) == (2, 2)
    export_step_records(store, uris, tmp_path / "run.parquet")
    records = pq.read_table(tmp_path / "run.parquet").to_pylist()
    assert len(records) == 2 * 6 * TURNS
    shots = [describe(screen(turn)).id for turn in range(TURNS + 1)]
    for record in records:
        at = record["step_index"]
        assert record["images"] == [shots[at]]
        assert record["next_images"] == [shots[at + 1]]
        assert record["judge_images"] == shots[at : at + 2]
        assert set(record["policy_versions"]) == {record["step"]}
    kept = sorted(path.stem for path in (Path(store.root) / "images").iterdir())
    assert kept == sorted(shot.removeprefix("sha256:") for shot in shots)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
