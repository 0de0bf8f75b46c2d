"""The parts of an experiment, so that one command line, one runner and one results file serve all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from demo.settings import ROOT
from experiments.comparison import Comparison
from experiments.jobs import Job
from experiments.settings import Arm, Settings

_LOOP = "-2"  # the second loop that plays experiments
RECORD = ROOT / "experiments" / "results" / "runs"


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment. Its modules need torch and matplotlib, and are loaded when they are asked for.

    Attributes:
        name: of results and page; `make experiment-NAME` runs it.
        arms: what is compared.
        seeds: that are reported.
        full: how much is played.
        quick: as little as shows that everything runs.
        compared: makes the page; without, the `table` of the module `report` is printed.
        smoke: the arms of `quick`; all if empty.
        further: the seeds of arms that are not played on all reported ones.
    """

    name: str
    arms: Mapping[str, Arm]
    seeds: Sequence[int]
    full: Settings
    quick: Settings
    compared: Comparison | None = None
    report: str = ""
    smoke: Sequence[str] = ()
    further: Mapping[str, Sequence[int]] = field(default_factory=dict)


def digest(settings: Settings, arm: Arm) -> str:
    """Return the short name of settings and arm, in the name of a run's file; runs of others are never mixed in."""
    # with the options that recorded runs had and that are gone
    played = {"eval_rollouts": 1, **asdict(settings)}
    played["warm"] = settings.warm.fields() | {"auxiliary": 0}
    parts = {"settings": played, "arm": {"families": (), **asdict(arm)}}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def file_of(folder: Path, study: Study, settings: Settings, job: Job) -> Path:
    """Return the file of one run."""
    name = f"{job.arm}-{job.seed}-{digest(settings, study.arms[job.arm])}{_LOOP}.jsonl"
    return folder / study.name / name


def record_of(study: Study, settings: Settings, job: Job) -> Path:
    """Return the file of a run on record, played before the experiments used the product's own loop."""
    name = f"{job.arm}-{job.seed}-{digest(settings, study.arms[job.arm])}.jsonl"
    return RECORD / study.name / name


def files_of(
    folder: Path, study: Study, settings: Settings, jobs: Sequence[Job], *, finished: bool
) -> dict[Job, Path]:
    """Return the files of runs: all on record if all are there and not played again, or else all of the product's loop.

    With `finished`, no run is to be played: runs on record are chosen unless there are newer ones.
    """
    new = {job: file_of(folder, study, settings, job) for job in jobs}
    old = {job: record_of(study, settings, job) for job in jobs}
    newer = [path.is_file() for path in new.values()]
    if all(path.is_file() for path in old.values()):
        return new if all(newer) else old
    return old if finished and not any(newer) else new
