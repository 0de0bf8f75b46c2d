"""A run of three trained models: two that play an agent each in turns, and a judge."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from demo.models.tiny_models import TinyShape, build_tiny_model
from services.trainer.runs.rollback import RunRollback, roll_back
from services.trainer.runs.runs import Runs
from tests.service.fake_loop import CONFIG, Loop, loop_of
from tests.warm_processes import WarmProcess
from triforge.broker import Broker
from triforge.config import Settings, parse
from triforge.store.artifacts import ArtifactStore
from triforge.types import RunState, TrainedRole

MOVER = {"path": "/models/mover", "agents": ["mover"]}


@pytest.fixture
async def loop(broker: Broker, redis_url: str, tmp_path: Path) -> AsyncIterator[Loop]:
    async with loop_of(broker, redis_url, tmp_path, ["mover"]) as made:
        made.config = CONFIG | {"models": CONFIG["models"] | {"mover": MOVER}}
        yield made


def _trained(loop: Loop, run: RunState) -> list[tuple[str, int, int]]:
    """How often each version of each model was trained on, from the run's base."""
    base = loop.store.run_state(run.id)["base"]
    found = loop.trained().items()
    return sorted((r, v - base[r], n) for (name, r, v), n in found if name == run.id)


async def test_all_three_are_trained_published_and_on_record(loop: Loop) -> None:
    run = await loop.conduct(loop.submit())
    assert (run.status, run.reason) == ("finished", "")
    base = loop.store.run_state(run.id)["base"]
    assert run.versions == {role: base[role] + 2 for role in ("policy", "reward", "mover")}
    assert _trained(loop, run) == [(r, v, 1) for r in ("mover", "policy", "reward") for v in (0, 1)]
    assert loop.services["mover"].version == run.further["mover"]
    kept = {row.role for row in loop.store.weights_of(run.id)}
    assert kept == {"policy", "reward", "mover"}
    last = loop.store.steps(run.id)[-1]
    assert last.further == run.further
    assert last.metrics["mover/loss"] == 0.5
    assert last.metrics["rows/mover"] == 4.0
    assert last.metrics["staleness/mover/max"] == 0.0
    assert {(r["agent_id"], r["model"]) for r in loop.records(run)} == {
        ("planner", "policy"), ("mover", "mover"),
    }  # fmt: skip


async def test_weights_of_another_run_play_no_group_of_this_one(loop: Loop) -> None:
    """The mover's service comes up anew while the run rests: what its first folder played is not the run's."""
    first = await loop.conduct(loop.submit(steps=1))
    loop.services["mover"].restart()
    again = await loop.conduct(loop.submit(steps=1))
    assert (first.status, again.status) == ("finished", "finished")
    base = loop.store.run_state(again.id)["base"]
    assert {tuple(r["policy_versions"]) for r in loop.records(again)} == {(0,)}
    assert loop.services["mover"].version == base["mover"] + 1


async def test_a_run_of_three_ends_the_same_wherever_its_orchestrator_dies(loop: Loop) -> None:
    short = {"steps": 1, "eval_every": 0}
    clean = await loop.conduct(loop.submit(**short))
    for place in range(5, 100, 9):
        run = loop.submit(**short)
        if not await loop.killed(run, place):
            break
        assert (await loop.conduct(run)).status == "finished"
        assert _trained(loop, run) == _trained(loop, clean)
        assert loop.records(run) == loop.records(clean)
    assert place > 30


# ---- real learners ----


class Learning:
    """A learner's process. One that is to die is killed (SIGKILL) in a step after the first, and comes up again."""

    def __init__(
        self, redis_url: str, store: ArtifactStore, role: TrainedRole, folder: Path
    ) -> None:
        self._store, self._role = store, role
        settings = Settings(redis_url=redis_url, artifacts_url=store.root, lease_s=3)
        self._env = settings.environment() | {"OMP_NUM_THREADS": "1"}
        self._log = folder / f"learner-{role}.log"
        self.trained: Counter[Any] = Counter()
        self.dies = False
        self.killed_in: list[str] = []  # batches that it had begun and not come back from

    async def serve(self) -> None:
        command = ("services.trainer", "learner", "--role", self._role)
        while True:
            with WarmProcess(*command, env=self._env, log=self._log) as child:
                while child.returncode is None:
                    doomed = self.dies and not self.killed_in
                    if doomed and "-00001-" not in (self._begun() or "-00001-"):
                        child.send_signal(signal.SIGSTOP)  # so that it is in the step when it dies
                        if begun := self._begun():
                            child.send_signal(signal.SIGKILL)
                            child.wait(30)
                            self.killed_in.append(begun)
                        else:
                            child.send_signal(signal.SIGCONT)
                    await asyncio.sleep(0.005)

    def _begun(self) -> str:
        """The batch that the learner has noted before its work, and not come back from."""
        name = f"checkpoints/cursor-{self._role}.json"
        noted = json.loads(self._store.read(name)) if self._store.exists(name) else {}
        return str(noted.get("batch_id", ""))


def _weights(loop: Loop, run: RunState) -> dict[TrainedRole, list[str]]:
    """The tensors of each published version, in order."""
    return {
        role: [
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(loop.artifacts.local_path(f"weights/{run.id}/{role}").glob("v*/*.safetensors"))
        ]
        for role in loop.roles
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_learner_is_killed_in_a_step_and_the_weights_are_the_same_bit_for_bit(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    shape = TinyShape(hidden=8, layers=1, heads=1, max_positions=16)
    words = [f"w{number}" for number in range(200)]  # for the ids of `played`
    folders = {
        role: str(build_tiny_model(tmp_path / role, words, shape=shape, seed=seed))
        for seed, role in enumerate(("policy", "reward", "mover"))
    }
    loop = Loop(broker, redis_url, tmp_path, ["mover"])
    models = {role: {"path": path} for role, path in folders.items()}
    own = {"mover": {"job": "ce"}}
    long = {"steps": 4, "eval_every": 0, "keep_checkpoints": 4}
    loop.config = CONFIG | {
        "models": models | {"mover": models["mover"] | {"agents": ["mover"]}},
        "trainer": {
            role: {"learning_rate": 1e-3, "epochs": 20} | own.get(role, {}) for role in folders
        },
    }
    learners = {role: Learning(redis_url, loop.artifacts, role, tmp_path) for role in loop.roles}
    loop.learners = dict[str, Any](learners)
    loop.start()
    try:
        clean = await loop.conduct(loop.submit(**long))
        for learner in learners.values():
            learner.dies = True
        killed = await loop.conduct(loop.submit(**long))
    finally:
        await loop.close()
    assert (clean.status, killed.status) == ("finished", "finished")
    for role, learner in learners.items():
        (batch,) = learner.killed_in
        assert (batch.startswith(killed.id), batch.endswith(role)) == (True, True)
    expected = _weights(loop, clean)
    assert [len(set(found)) for found in expected.values()] == [4, 4, 4]
    assert _weights(loop, killed) == expected
    assert parse(clean.config).trained == ("policy", "reward", "mover")
    nothing: Any = None
    runs = Runs(
        store=loop.store, pools=nothing, broker=nothing, artifacts=loop.artifacts, settings=Settings(), apis=loop.services,
    )  # fmt: skip
    first = killed.further["mover"] - 1
    rolled = await roll_back(runs, killed.id, RunRollback(role="mover", version=first))
    assert rolled.further["mover"] == first + 2
    assert (rolled.policy_version, loop.services["mover"].version) == (
        killed.policy_version,
        first + 2,
    )
