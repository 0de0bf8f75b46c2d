"""What a run has left behind for a replay: read from the deployment's stores, or from a folder or a file that was sent.

Layout of a folder:

    run.json                      the run's id, what its steps measured, its first versions, where each version lies
    pool.json                     the family, options and tasks of its pool
    runs/<run>/steps/*.parquet    the record of each step, and beside it the log-probabilities of its training
    weights/  checkpoints/        the versions that were kept, as in the artifact store
    models/<role>/                the models that the run began with
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from services.trainer.run_store import RunStore
from triforge.errors import InputError, NotFoundError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import read_origin
from triforge.types import RunStep, TrainedRole

_ABOUT, _POOL = "run.json", "pool.json"
_FOLDER: Final = re.compile(r"v(\d{6,})")


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
        source: reads the Parquet file of a step; a file of the whole run is that of every step.
        artifacts: weights, checkpoints and log-probabilities; None where only a file was given.
        paths: the initial model folder of each role, `base` its version.
        folders: by role and version the number of the folder in which the weights were written.
        pool: what its pool of tasks is made of anew; see `PoolRequest`. Empty where nothing says so.
    """

    run_id: str
    steps: list[RunStep]
    source: Callable[[int], bytes]
    artifacts: ArtifactStore | None = None
    paths: Mapping[TrainedRole, str] = field(default_factory=dict)
    base: Mapping[TrainedRole, int] = field(default_factory=dict)
    folders: Mapping[TrainedRole, Mapping[int, int]] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_run(cls, store: RunStore, artifacts: ArtifactStore, run_id: str) -> Self:
        """A run of a deployment; NotFoundError if there is none of this id, or no step of it is finished."""
        pool = store.pool_of(run_id)
        notes = store.run_state(run_id)
        folders: dict[TrainedRole, dict[int, int]] = {}
        for row in store.weights_of(run_id):
            known = _FOLDER.fullmatch(Path(row.uri).name)
            if known and row.uri != notes.get("paths", {}).get(row.role):
                folders.setdefault(row.role, {})[row.version] = int(known[1])
        steps = [step for step in store.steps(run_id) if "step_record" in step.artifacts]
        if not steps:
            raise NotFoundError(f"run {run_id} has no finished training step yet")
        return cls(
            run_id=run_id, steps=steps, artifacts=artifacts, folders=folders, paths=notes["paths"], base=notes["base"],
            pool=pool, source=_reader(artifacts, steps),
        )  # fmt: skip

    @classmethod
    def of_path(cls, path: Path) -> Self:
        """A folder that `save` wrote, or a Parquet file of `triforge run export`; InputError if it is neither."""
        try:
            return cls._of_folder(path) if path.is_dir() else cls._of_file(path)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise InputError(
                f"{path}: expected a folder of `triforge replay --save` or a file of `triforge run export`: {error}"
            ) from error

    @classmethod
    def _of_folder(cls, folder: Path) -> Self:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        pool = json.loads((folder / _POOL).read_text()) if (folder / _POOL).exists() else {}
        steps = [RunStep.model_validate_json(json.dumps(step)) for step in about["steps"]]
        artifacts = ArtifactStore(str(folder))
        return cls(
            run_id=about["run"], steps=steps, artifacts=artifacts, base=about["base"], pool=pool,
            paths={role: str(folder.resolve() / path) for role, path in about["paths"].items()},
            folders={
                role: {int(version): number for version, number in own.items()}
                for role, own in about["folders"].items()
            },
            source=_reader(artifacts, steps),
        )  # fmt: skip

    @classmethod
    def _of_file(cls, path: Path) -> Self:
        data, origin = path.read_bytes(), read_origin(path)
        if not origin.get("steps"):
            raise ValueError("its metadata name no training step")
        run_id = pq.read_table(path, columns=["run_id"])[0][0].as_py()
        steps = [
            RunStep(
                run_id=run_id, step=int(number), at=0.0, policy_version=known["policy_version"],
                reward_version=known["reward_version"], metrics={}, further=_further(known),
            )
            for number, known in sorted(origin["steps"].items(), key=lambda one: int(one[0]))
        ]  # fmt: skip
        return cls(run_id=run_id, steps=steps, source=lambda _: data)

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
        if self.artifacts is None or folder.exists():
            given = "a file alone" if self.artifacts is None else f"{folder}, which exists"
            raise InputError(f"--save: given {given}, expected a run and a new folder")
        target, steps = ArtifactStore(str(folder)), []
        for step in self.steps:
            name = f"runs/{self.run_id}/steps/{step.step:05d}.parquet"
            target.write(name, self.source(step.step))
            steps.append(step.model_copy(update={"artifacts": {"step_record": name}}))
        copied = [f"{kind}/{self.run_id}" for kind in ("weights", "checkpoints")]
        for name in (*copied, f"runs/{self.run_id}/logprobs"):
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
        target.write(_POOL, (json.dumps(self.pool) + "\n").encode())
        target.write(_ABOUT, (json.dumps(about, indent=1) + "\n").encode())


def _reader(artifacts: ArtifactStore, steps: Sequence[RunStep]) -> Callable[[int], bytes]:
    names = {step.step: step.artifacts["step_record"] for step in steps}
    return lambda step: artifacts.read(names[step])


def _further(known: Mapping[str, Any]) -> dict[TrainedRole, int]:
    """Versions of models beside policy and reward model, by name, in the numbers of a step."""
    named = {n.removesuffix("_version"): int(v) for n, v in known.items() if n.endswith("_version")}
    return {role: v for role, v in named.items() if role not in ("policy", "reward")}
