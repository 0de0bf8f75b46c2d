"""A learner that is killed at chosen moments: `python -m tests.service.killed_learner FOLDER`, without a critic and with one.

Moments are counted in calls of functions, Python's and C's. The undisturbed run notes at which call each landmark is
reached: what reads, trains, writes, renames and deletes. Every trial is two forks of one warm process: one that is killed
(SIGKILL, by itself) and one that goes on from what it left. Trials hit the call of each kind of landmark, the one after it,
and a moment between two of them. One thread only: a fork has none of the threads of torch's pool, and would wait for them.
Prints one JSON object: of each kind the digest of the undisturbed end, and landmark, moment and digest of every trial.
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

from demo.models.tiny_models import TinyShape, build_tiny_model
from services.trainer.learner.batch_trainer import BatchTrainer
from tests.batches import train_batch
from tests.unit.trainer.conftest import WORDS, sampled_rows
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import write_rows
from triforge.types import TrainBatch, TrainRow

_BASE = 2
_STEPS = 3
_ROWS = 6
_SHAPE = TinyShape(hidden=8, layers=1, heads=2, max_positions=64)
LANDMARKS = {
    "plain": ("read_rows", "backward", "apply", "rename", "fsync", "submit", "write_manifest", "prune", "rmtree"),
    "critic": ("estimate", "rename", "submit"),
}  # fmt: skip


class Course:
    """Three steps of training, taken by as many runs as are asked for; with a critic if that is wanted."""

    def __init__(self, root: Path, kind: str) -> None:
        self.critic, self.landmarks = kind == "critic", LANDMARKS[kind]
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
                num_rows=_ROWS, base=_BASE, keep=2, seed=5, learning_rate=1e-3, updates_per_step=2, **estimate,
            )
            for step, uri in enumerate(self.uris, start=1)
        ]  # fmt: skip

    def work(self, run: str, moment: int | None = None, *, note: bool = False) -> None:
        """Take the steps as a learner's process does. Never returns if killed; notes the landmarks if they are wanted."""
        trainer, calls = BatchTrainer(self.store), 0
        found: dict[str, list[int]] = {name: [] for name in self.landmarks}

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            if event not in ("call", "c_call"):
                return
            calls += 1
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            if note:
                name = frame.f_code.co_name if event == "call" else argument.__name__
                if name in found:
                    found[name].append(calls)

        if note or moment is not None:
            sys.setprofile(count)
        for batch in self.batches(run):
            ready = trainer.train(batch)
            if ready is not None and ready.error is not None:
                raise SystemExit(ready.error.detail)
        sys.setprofile(None)
        if note:
            self.store.write("landmarks.json", json.dumps(found).encode())

    def forked(self, run: str, moment: int | None = None, *, note: bool = False) -> int:
        """The wait status of a process that works."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.work(run, moment, note=note)
                status = 0
            finally:
                os._exit(status)
        return os.waitpid(child, 0)[1]

    def moments(self) -> list[tuple[str, int]]:
        """Return the moments to kill at: a landmark of each kind from the second step on, and a moment after it."""
        draw = random.Random(11)
        noted: dict[str, list[int]] = json.loads(self.store.read("landmarks.json"))
        everything = sorted(call for calls in noted.values() for call in calls)
        found = []
        for name, calls in noted.items():
            call = draw.choice(calls[len(calls) // 3 :])
            following = next((c for c in everything if c > call), call + 2)
            between = draw.randint(call + 1, max(call + 1, following - 1))
            found += [(name, call), (f"after {name}", between)]
        return found

    def digest(self, run: str) -> str:
        """Return the digest of all parts of the last version except the run's name."""
        name = f"v{_BASE + _STEPS:06d}"
        (folder,) = self.store.local_path(f"checkpoints/{run}/policy").glob(f"{name}-*")
        found = hashlib.sha256(self.store.read(f"weights/{run}/policy/{name}/model.safetensors"))
        critic = ("critic", "critic_optimizer") if self.critic else ()
        for file in ("optimizer", *critic):
            found.update((folder / f"{file}.safetensors").read_bytes())
        state = json.loads((folder / "state.json").read_text())
        kept = [state[key] for key in ("counters", "random", "step", *critic[:1])]
        found.update(json.dumps(kept).encode())
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


def trials_of(root: Path, kind: str) -> dict[str, Any]:
    """Run the trials of one kind."""
    course = Course(root, kind)
    course.work("warm")  # what a first step loads is not counted
    assert course.forked("straight", note=True) == 0
    trials = []
    for number, (landmark, moment) in enumerate(course.moments()):
        run = f"trial-{number}"
        killed = course.forked(run, moment)
        resumed = course.forked(run)
        trials.append(
            {
                "landmark": landmark,
                "moment": moment,
                "killed": os.WIFSIGNALED(killed) and os.WTERMSIG(killed) == signal.SIGKILL,
                "resumed": resumed,
                "digest": course.digest(run) if resumed == 0 else "",
            }
        )
    return {"digest": course.digest("straight"), "trials": trials}


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    sys.stdout.write(json.dumps({kind: trials_of(root / kind, kind) for kind in LANDMARKS}))
