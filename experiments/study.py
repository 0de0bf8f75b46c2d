"""The parts of an experiment, so that one command line, one runner and one results file serve all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments.jobs import Job
from experiments.settings import Arm, Settings
from triforge.errors import ConfigError

_LOOP = "-2"  # the second loop that plays experiments


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment. Its modules need torch and matplotlib, and are loaded when they are asked for.

    Attributes:
        name: of results and page; `make experiment-NAME` runs it.
        arms: what is compared.
        seeds: that are reported.
        full: how much is played.
        quick: as little as shows that everything runs.
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
    report: str
    plots: str = ""
    smoke: Sequence[str] = ()
    further: Mapping[str, Sequence[int]] = field(default_factory=dict)


def digest(settings: Settings, arm: Arm) -> str:
    """Return the short name of settings and arm, in the name of a run's file; runs of others are never mixed in."""
    # with the options that recorded runs had and that are gone
    played = {"eval_rollouts": 1, **asdict(settings)}
    played["warm"] |= {"auxiliary": 0}
    parts = {"settings": played, "arm": {"families": (), **asdict(arm)}}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def file_of(
    folder: Path, study: Study, settings: Settings, job: Job, *, recorded: bool = False
) -> Path:
    """Return the file of one run.

    Runs `recorded` before the experiments were played by the product's own loop have names without its mark.
    """
    mark = "" if recorded else _LOOP
    name = f"{job.arm}-{job.seed}-{digest(settings, study.arms[job.arm])}{mark}.jsonl"
    return folder / study.name / name


def files_of(
    folder: Path, study: Study, settings: Settings, jobs: Sequence[Job], *, finished: bool
) -> dict[Job, Path]:
    """Return the files of runs: all of the recorded loop if that has all of them, or else all of the product's loop.

    With `finished`, no run is to be played: recorded runs are chosen unless there are newer ones.
    """
    new = {job: file_of(folder, study, settings, job) for job in jobs}
    old = {job: file_of(folder, study, settings, job, recorded=True) for job in jobs}
    newer = [path for path in new.values() if path.is_file()]
    if all(path.is_file() for path in old.values()):
        return new if all(path.is_file() for path in new.values()) else old
    return old if finished and not newer else new


def lender_of(arm: Arm) -> str:
    """Return the arm whose last reward model judges, if it is not that of the warm start."""
    return str(arm.config.get("judge_of", ""))


def judges_of(
    folder: Path, study: Study, settings: Settings, job: Job, reward: Path
) -> tuple[Path, Path | None]:
    """Return the reward model that a run starts with, and where it leaves its own: an arm's `judge_of` names the arm that it is from.

    Raises:
        ConfigError: that arm has left none yet.
    """
    lenders, lender = set(map(lender_of, study.arms.values())), lender_of(study.arms[job.arm])
    keep = file_of(folder, study, settings, job).with_suffix(".judge")
    if lender:
        reward = file_of(folder, study, settings, Job(lender, job.seed)).with_suffix(".judge")
        if not reward.is_dir():
            raise ConfigError(
                f"arm {job.arm} judges with the reward model that arm {lender} ends with, and {reward} is not there; first run "
                f"python -m experiments {study.name} --arms {lender} --seeds {job.seed} (its .jsonl file has to go if it is there)"
            )
    return reward, keep if job.arm in lenders else None
