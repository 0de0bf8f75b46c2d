"""A run whose steps went through the trainer's own crediting and committing, in a database and an artifact store of a test.

Each of two steps has two groups of four rollouts: the first succeeds, the second fails against its votes, the third is cut
and sampled by older weights, the fourth never began. Step 2 ends with an evaluation of a group of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from services.trainer.loop.measures import sample_measures
from services.trainer.runs.store import RunStore
from tests.unit.trainer.played import group_task, judged
from triforge.algorithms.algorithm import resolve
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import Database
from triforge.store.step_records import write_step_records
from triforge.store.training_logprobs import write_logprobs
from triforge.testing.model_folders import words_folder
from triforge.types import JudgedGroup, Purpose, RunStep, Trajectory

EVIL = '<img src=x onerror="alert(1)">&"\''
WORDS = [f"w{n}" for n in range(300)]
ACTIONS = (("look", "take mug", "go shelf"), ("look", "take cup"), ("look", EVIL), ())
VOTES = ([[1, 1], [1, -1], [1, 0]], [[1, 1], [1, 1]], [[-1, -1], [-1, 0]], [])
OUTCOMES = (1, -1, -1, None)
MEASURES = {
    "success": 0.5, "success/low": 0.3, "success/high": 0.7, "trajectories": 8.0, "infrastructure_failures": 2.0,
    "seconds/play": 6.0, "seconds/credit": 0.5, "seconds/train": 2.0, "seconds/publish": 0.5,
    "policy/kl_k3": 0.01, "policy/ratio_mean": 1.0, "policy/ratio_max": 2.0,
}  # fmt: skip


@dataclass(frozen=True)
class RecordedRun:
    """Where it is."""

    store: RunStore
    artifacts: ArtifactStore
    run_id: str

    def group(self, step: int, number: int = 0, purpose: Purpose = "train") -> str:
        return f"{self.run_id}-{step:05d}-{purpose}-{number:04d}"


def played(run_id: str, step: int, number: int, purpose: Purpose) -> JudgedGroup:
    """One group; tasks of step 2 are named after its number, so each is played once a step."""
    task = group_task(
        f"{run_id}-{step:05d}-{purpose}-{number:04d}", run_id=run_id, step=step, purpose=purpose,
        task_id=f"task-{number}", rollouts=4,
    )  # fmt: skip
    most = 2 if purpose == "evaluate" else 4
    group = judged(task, OUTCOMES[:most], VOTES[:most], version=3, judge_version=3)
    found = [
        _acted(trajectory, ACTIONS[n], stale=n == 2)
        for n, trajectory in enumerate(group.played.trajectories)
    ]
    kind = {"task": group.played.task.model_copy(update={"kind": f"kind-{number}"})}
    played = group.played.model_copy(update={"trajectories": tuple(found), **kind})
    votes = [None if given is None or purpose == "evaluate" else given for given in group.votes]
    return group.model_copy(update={"played": played, "votes": tuple(votes)})


def _acted(trajectory: Trajectory, actions: tuple[str, ...], *, stale: bool) -> Trajectory:
    steps = [
        step.model_copy(
            update={
                "action": action, "response": f"{action} </s>", "admissible": ("look", "take mug"),
                "finish": "length" if stale else "stop",
            }
        )
        for step, action in zip(trajectory.steps, actions, strict=True)
    ]  # fmt: skip
    segments = trajectory.segments
    if stale:
        old = [
            segment.model_copy(
                update={
                    "versions": tuple(s.model_copy(update={"version": 1}) for s in segment.versions)
                }
            )
            for segment in segments
        ]
        segments = tuple(old)
    text = f"put some {EVIL} mug in shelf"
    return trajectory.model_copy(
        update={"steps": tuple(steps), "segments": segments, "instruction": text}
    )


def recorded_run(
    database: Database, folder: Path, *, tenant: str = "default", **sections: Any
) -> RecordedRun:
    """Make it, with these sections of its config."""
    store, artifacts = RunStore(database), ArtifactStore(str(folder / "artifacts"))
    model = words_folder(folder / "model", WORDS)
    run = store.create(
        name=EVIL, pool_id="pool-1", config={"run": {"steps": 2}, **sections}, tenant=tenant
    )
    store.begin(
        run.id, state={"paths": {"policy": str(model)}}, versions={"policy": 3, "reward": 3}
    )
    limits = Limits(max_tokens=64, max_rows=0, bound=2)
    for step in (1, 2):
        options = SampleOptions(
            algorithm=resolve("rlanything", {"reward_band": "none"}), players={"policy": (3, limits)},             judging={"reward": (3, limits)}, seed=0, step=step,
        )  # fmt: skip
        found = build_samples([played(run.id, step, n, "train") for n in range(2)], options)
        uris = {
            "step_record": write_step_records(
                artifacts, f"runs/{run.id}/{step}.parquet", found.records
            )
        }
        lines = found.lines
        if step == 2:
            held = build_samples([played(run.id, step, 0, "evaluate")], options)
            uris["evaluation"] = write_step_records(
                artifacts, f"runs/{run.id}/evaluation.parquet", held.records
            )
            lines = lines + held.lines
        record = RunStep(
            run_id=run.id, step=step, at=60.0 * step, policy_version=3, reward_version=3,
            metrics=MEASURES | {"judge/alarm": step - 1.0} | sample_measures(found), artifacts=uris,
        )  # fmt: skip
        assert store.commit_step(record, lines=lines)
    store.set_status(run.id, "finished")
    made = RecordedRun(store, artifacts, run.id)
    trained = np.array([-0.4, -0.6], dtype=np.float32)  # of its first two turns
    write_logprobs(artifacts, run.id, 1, [(f"{made.group(1)}-00/0", np.array([2, 5]), trained)])
    return made
