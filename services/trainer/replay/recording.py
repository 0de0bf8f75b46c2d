"""What a run has left behind for a replay: read from the deployment's stores, or from a folder or a file that was sent.

Layout of a folder:

    run.json                      the run's id, what its steps measured, its first versions, where each version lies
    runs/<run>/steps/*.parquet    the record of each step, beside it in logprobs/ the log-probabilities of its training
    weights/  checkpoints/        the versions that were kept, as in the artifact store
    models/<role>/                the models that the run began with
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq

from services.trainer.runs.store import RunStore
from triforge.errors import InputError, NotFoundError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_origin
from triforge.store.weight_folders import weights_number
from triforge.types import RunStep, TrainedRole

_ABOUT = "run.json"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of one training step: its rows, with the columns of their time, and what they follow from; see `origin_of`."""

    records: list[dict[str, Any]]
    config: dict[str, Any]
    algorithm: dict[str, Any]
    numbers: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A run's record.

    Attributes:
        steps: the finished training steps, in order.
        artifacts: records, weights and checkpoints.
        paths: the initial model folder of each role, `base` its version.
        folders: by role and version the number of the folder in which the weights were written.
    """

    run_id: str
    steps: list[RunStep]
    artifacts: ArtifactStore
    paths: Mapping[TrainedRole, str] = field(default_factory=dict)
    base: Mapping[TrainedRole, int] = field(default_factory=dict)
    folders: Mapping[TrainedRole, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, store: RunStore, artifacts: ArtifactStore, run_id: str) -> Self:
        """A run of a deployment; NotFoundError if there is none of this id, or no step of it is finished."""
        notes = store.run_state(run_id)
        folders: dict[TrainedRole, dict[int, int]] = {}
        for row in store.weights_of(run_id):
            number = weights_number(Path(row.uri))
            if number is not None and row.uri != notes.get("paths", {}).get(row.role):
                folders.setdefault(row.role, {})[row.version] = number
        steps = [step for step in store.steps(run_id) if "step_record" in step.artifacts]
        if not steps:
            raise NotFoundError(f"run {run_id} has no finished training step yet")
        return cls(
            run_id=run_id, steps=steps, artifacts=artifacts, folders=folders, paths=notes["paths"], base=notes["base"],
        )  # fmt: skip

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """A folder that `save` wrote; InputError if it is none."""
        try:
            about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
            steps = [RunStep.model_validate_json(json.dumps(step)) for step in about["steps"]]
            base, paths = about["base"], about["paths"]
            folders = {
                role: {int(version): number for version, number in own.items()}
                for role, own in about["folders"].items()
            }
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{folder}: expected a folder of `triforge replay --save`: {error}"
            ) from error
        return cls(
            run_id=about["run"], steps=steps, artifacts=ArtifactStore(str(folder)), base=base, folders=folders,
            paths={role: str(folder.resolve() / path) for role, path in paths.items()},
        )  # fmt: skip

    def source(self, step: int) -> bytes:
        """The Parquet file of a training step; NotFoundError if it is gone."""
        named = {one.step: one.artifacts["step_record"] for one in self.steps}
        return self.artifacts.read(named[step])

    def read(self, step: int) -> StepRecord:
        """The record of a training step.

        Raises:
            NotFoundError: its file is gone.
            InputError: the file is of a version that did not say what records follow from.
        """
        data = self.source(step)
        origin = read_origin(io.BytesIO(data))
        if str(step) not in origin.get("steps", {}):
            raise InputError(
                f"step {step}: its record does not say with which config and versions it was credited; an older triforge wrote it"
            )
        wanted = [("step", "=", step), ("purpose", "!=", "evaluate")]
        table = pq.read_table(io.BytesIO(data), filters=wanted, use_threads=False)
        numbers = origin["steps"][str(step)]
        return StepRecord(table.to_pylist(), origin["config"], origin["algorithm"], numbers)

    def save(self, folder: Path) -> None:
        """Copy everything into a new folder, which replays wherever it is taken; InputError if the folder is there."""
        if folder.exists():
            raise InputError(f"--save: given {folder}, which exists, expected a new folder")
        target, steps = ArtifactStore(str(folder)), []
        for step in self.steps:
            name = f"runs/{self.run_id}/steps/{step.step:05d}.parquet"
            target.write(name, self.source(step.step))
            steps.append(step.model_copy(update={"artifacts": {"step_record": name}}))
        kinds = (f"{kind}/{self.run_id}" for kind in ("weights", "checkpoints"))
        for name in (*kinds, f"runs/{self.run_id}/logprobs"):
            source = self.artifacts.local_path(name)
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns(".aside-*"))
        for role, path in self.paths.items():
            shutil.copytree(path, folder / "models" / role)
        about = {
            "run": self.run_id,
            "steps": [step.model_dump(mode="json") for step in steps],
            "paths": {role: f"models/{role}" for role in self.paths},
            "base": self.base,
            "folders": self.folders,
        }
        target.write(_ABOUT, (json.dumps(about, indent=1) + "\n").encode())
