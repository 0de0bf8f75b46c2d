"""What an experiment consists of, so that one command line, one runner and one results file serve all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments.jobs import Job
from experiments.settings import ARMS, QUICK, SEEDS, Arm, Settings


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment. Its modules need torch and matplotlib, and are loaded when they are asked for.

    Attributes:
        name: of results and page; `make experiment-NAME` runs it.
        arms: what is compared.
        seeds: that are reported.
        full: how much is played.
        quick: as little as shows that everything runs.
        run: module whose `play` plays one run.
        report: module whose `write` makes the page; without `plots`, one whose `table` is printed.
        plots: module whose `draw` draws its pictures into a folder.
        smoke: the arms of `quick`; all if empty.
        further: the seeds of arms that are not played on all reported ones.
    """

    name: str
    arms: Mapping[str, Arm]
    seeds: Sequence[int]
    full: Settings
    quick: Settings
    run: str
    report: str
    plots: str = ""
    smoke: Sequence[str] = ()
    further: Mapping[str, Sequence[int]] = field(default_factory=dict)


ADAPTATION = Study(
    name="adaptation",
    arms=ARMS,
    seeds=SEEDS,
    full=Settings(),
    quick=QUICK,
    run="experiments.loop",
    report="experiments.report",
    plots="experiments.plots",
)


def digest(settings: Settings, arm: Arm) -> str:
    """Short name of settings and arm, in the name of a run's file; runs of others are never mixed in."""
    parts = {"settings": asdict(settings), "arm": asdict(arm)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def file_of(folder: Path, study: Study, settings: Settings, job: Job) -> Path:
    """Of one run."""
    name = f"{job.arm}-{job.seed}-{digest(settings, study.arms[job.arm])}.jsonl"
    return folder / study.name / name
