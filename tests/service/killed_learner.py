"""A learner that is killed at a chosen moment, again and again: `python -m tests.service.killed_learner FOLDER COUNT SEED
[critic]`.

Moments are counted in calls of functions, Python's and C's, so that each can be hit, the renames of folders included. Every
trial is two forks of one warm process: one that is killed (SIGKILL, by itself, at its moment) and one that goes on from what
it left. One thread only: a fork has none of the threads of torch's pool, and would wait for them. Prints one JSON object: the digest of the undisturbed end, and moment and digest of every trial.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from services.trainer.batch_trainer import BatchTrainer
from services.trainer.tiny_models import TinyShape, build_tiny_model
from tests.batches import train_batch
from tests.unit.trainer.conftest import WORDS, sampled_rows
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.types import TrainBatch, TrainRow

_BASE = 2
_STEPS = 3
_ROWS = 6
_SHAPE = TinyShape(hidden=8, layers=1, heads=2, max_positions=64)


class Course:
    """Three steps of training, taken by as many runs as are asked for; with a critic if that is wanted."""

    def __init__(self, root: Path, *, critic: bool) -> None:
        self.critic = critic
        self.model = build_tiny_model(root / "model", WORDS, shape=_SHAPE, seed=7)
        self.store = ArtifactStore(str(root))
        self.uris = [
            write_rows(
                self.store,
                f"rows/{step}.parquet",
                rewarded(sampled_rows(self.model, _ROWS, seed=step)),
            )
            for step in range(1, _STEPS + 1)
        ]

    def batches(self, run: str) -> list[TrainBatch]:
        """The steps of one run."""
        estimate = {"estimator": "gae", "value_clip": 0.2} if self.critic else {}
        return [
            train_batch(
                self.model, batch_id=f"{run}-{step}", run_id=run, step=step, version=_BASE + step - 1, uri=uri,
                num_rows=_ROWS, base_version=_BASE, keep=2, seed=5, learning_rate=1e-3, updates_per_step=2, **estimate,
            )
            for step, uri in enumerate(self.uris, start=1)
        ]  # fmt: skip

    def work(self, run: str, moment: int | None) -> None:
        """Take the steps as a learner's process does, and note the number of calls. Never returns if killed."""
        trainer = BatchTrainer(self.store)
        asked = self.batches(run)
        calls = 0

        def count(_frame: FrameType, event: str, _argument: Any) -> None:
            nonlocal calls
            if event in ("call", "c_call"):
                calls += 1
                if calls == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        for batch in asked:
            ready = trainer.train(batch)
            if ready is not None and ready.error is not None:
                raise SystemExit(ready.error.detail)
        sys.setprofile(None)
        self.store.write(f"calls/{run}", str(calls).encode())

    def forked(self, run: str, moment: int | None = None) -> int:
        """The wait status of a process that works."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.work(run, moment)
                status = 0
            finally:
                os._exit(status)
        return os.waitpid(child, 0)[1]

    def calls(self, run: str) -> int:
        """How many a process took."""
        return int(self.store.read(f"calls/{run}"))

    def digest(self, run: str) -> str:
        """Of all that the last version is made of, but for the run's name."""
        name = f"v{_BASE + _STEPS:06d}"
        (folder,) = self.store.local_path(f"checkpoints/{run}/policy").glob(f"{name}-*")
        found = hashlib.sha256(self.store.read(f"weights/{run}/policy/{name}/model.safetensors"))
        critic = ("critic", "critic_optimizer") if self.critic else ()
        for file in ("optimizer", *critic):
            found.update((folder / f"{file}.safetensors").read_bytes())
        state = json.loads((folder / "state.json").read_text())
        told = [state[key] for key in ("counters", "random", "step", *critic[:1])]
        found.update(json.dumps(told).encode())
        return found.hexdigest()


def rewarded(rows: list[TrainRow]) -> list[TrainRow]:
    """The same rows, of which every other one brought 1 with its last token."""
    return [
        row.model_copy(
            update={
                "rewards": (*[0.0] * (len(row.ids) - 1), float(number % 2)),
                "ends": (len(row.ids) - 1,),
            }
        )
        for number, row in enumerate(rows)
    ]


def main(root: Path, count: int, seed: int, *, critic: bool) -> None:
    """Run the trials."""
    torch.set_num_threads(1)
    course = Course(root, critic=critic)
    course.work("warm", None)  # what a first step loads is not counted
    course.forked("straight")
    calls = course.calls("straight")
    trials = []
    for number, moment in enumerate(random.Random(seed).sample(range(1, calls), count)):
        run = f"trial-{number}"
        killed = course.forked(run, moment)
        resumed = course.forked(run)
        trials.append(
            {
                "moment": moment,
                "killed": os.WIFSIGNALED(killed) and os.WTERMSIG(killed) == signal.SIGKILL,
                "resumed": resumed,
                "digest": course.digest(run) if resumed == 0 else "",
            }
        )
    found = {"calls": calls, "digest": course.digest("straight"), "trials": trials}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), critic="critic" in sys.argv[4:])
