"""The record of a run for a replay, read from the deployment's stores or from a folder of `triforge replay --save`.

Layout of a folder:

    run.json                      the run's id, the measures of its steps, its first versions, the folder of each version
    runs/<run>/steps/*.parquet    the record of each step; in logprobs/ the log-probabilities of its training
    weights/  checkpoints/        the versions that were kept, as in the artifact store
    models/<role>/                the models that the run began with
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from services.trainer.runs.store import RunStore
from triforge.errors import InputError, NotFoundError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_origin, step_record_name
from triforge.store.weight_folders import weights_number
from triforge.types import RunStep, TrainedRole

_ABOUT = "run.json"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of one training step: its rows, with the columns of their time, and its origin; see `origin_of`."""

    records: list[dict[str, Any]]
    config: dict[str, Any]
    algorithm: dict[str, Any]
    numbers: Mapping[str, float]


class _About(BaseModel):
    """The content of `run.json`."""

    run: str
    steps: list[RunStep]
    paths: dict[TrainedRole, str]
    base: dict[TrainedRole, int]
    folders: dict[TrainedRole, dict[int, int]]


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
        """Return the record of a run of a deployment; NotFoundError if there is none of this id, or it has no finished step."""
        notes = store.run_state(run_id)
        steps = [step for step in store.steps(run_id) if "step_record" in step.artifacts]
        if not steps:
            raise NotFoundError(f"run {run_id} has no finished training step yet")
        folders: dict[TrainedRole, dict[int, int]] = {}
        for row in store.weights_of(run_id):
            number = weights_number(Path(row.uri))
            if number is not None and row.uri != notes["paths"].get(row.role):
                folders.setdefault(row.role, {})[row.version] = number
        return cls(
            run_id=run_id, steps=steps, artifacts=artifacts, paths=notes["paths"], base=notes["base"], folders=folders,
        )  # fmt: skip

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Return the record in a folder that `save` wrote; InputError if it is none."""
        try:
            about = _About.model_validate_json((folder / _ABOUT).read_bytes())
        except (OSError, ValidationError) as error:
            raise InputError(
                f"{folder}: expected a folder of `triforge replay --save`: {error}"
            ) from error
        paths = {role: str(folder.resolve() / path) for role, path in about.paths.items()}
        return cls(
            run_id=about.run, steps=about.steps, artifacts=ArtifactStore(str(folder)), paths=paths, base=about.base,
            folders=about.folders,
        )  # fmt: skip

    def source(self, step: int) -> bytes:
        """Return the Parquet file of a training step; NotFoundError if it is gone."""
        uris = {one.step: one.artifacts["step_record"] for one in self.steps}
        return self.artifacts.read(uris[step])

    def read(self, step: int) -> StepRecord:
        """Return the record of a training step.

        Raises:
            NotFoundError: its file is gone.
            InputError: the file is of a version of triforge that recorded no origin.
        """
        file = io.BytesIO(self.source(step))
        origin = read_origin(file)
        if str(step) not in origin.get("steps", {}):
            raise InputError(
                f"step {step}: its record, of an older triforge, does not name the config and versions of its credit"
            )
        wanted = [("step", "=", step), ("purpose", "!=", "evaluate")]
        records = pq.read_table(file, filters=wanted, use_threads=False).to_pylist()
        return StepRecord(
            records, origin["config"], origin["algorithm"], origin["steps"][str(step)]
        )

    def save(self, folder: Path) -> None:
        """Copy everything into a new folder, which replays on any machine; InputError if the folder exists."""
        if folder.exists():
            raise InputError(f"--save: given {folder}, which exists, expected a new folder")
        target, steps = ArtifactStore(str(folder)), []
        for step in self.steps:
            name = step_record_name(self.run_id, step.step)
            target.write(name, self.source(step.step))
            steps.append(step.model_copy(update={"artifacts": {"step_record": name}}))
        kept = ("weights/{}", "checkpoints/{}", "runs/{}/logprobs")
        for name in (one.format(self.run_id) for one in kept):
            source = self.artifacts.local_path(name)
            if source.is_dir():
                shutil.copytree(
                    source, folder / name, ignore=shutil.ignore_patterns(".aside-*", "unusable-*")
                )
        for role, path in self.paths.items():
            shutil.copytree(path, folder / "models" / role)
        about = _About.model_validate({
            "run": self.run_id, "steps": steps, "base": self.base, "folders": self.folders,
            "paths": {role: f"models/{role}" for role in self.paths},
        })  # fmt: skip
        target.write(_ABOUT, f"{about.model_dump_json(indent=1)}\n".encode())
