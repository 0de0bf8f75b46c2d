"""`python -m services.trainer replay`: recompute a run from its record alone and compare every number. No engine."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.trainer.replay.credit import VERDICTS, Change, Finding, changes, compare, credit
from services.trainer.replay.recording import Recording
from services.trainer.runs.store import RunStore
from triforge.config import Settings
from triforge.errors import InputError
from triforge.store.artifacts import ArtifactStore
from triforge.store.database import open_database
from triforge.types import RunStep, TrainedRole


def replay(
    recording: Recording, only: int | None = None, *, learners: bool
) -> Iterator[tuple[int, Finding]]:
    """Yield the findings of each training step: its credit, and with `learners` each model's loss and gradient.

    Raises:
        InputError: the run has no step `only`, or a record has no origin.
        NotFoundError: a record is gone.
    """
    trained = {}
    if learners:
        from services.trainer.replay.learner import ReplayedLearner  # noqa: PLC0415 (brings torch)

        trained = {role: ReplayedLearner(recording, role) for role in recording.paths}
    for step in _steps(recording, only):
        record = recording.read(step.step)
        credited = credit(step.step, record)
        yield step.step, compare(record, credited)
        for role, learner in trained.items():
            finding = learner.step(step, credited, int(record.numbers[f"{role}_version"]))
            if finding is not None:
                yield step.step, finding


def what_if(
    recording: Recording, assignments: Sequence[str], only: int | None = None
) -> Iterator[tuple[int, TrainedRole, Change]]:
    """Yield the effect of other fields of the config (`section.field=value`) on each step's responses and votes."""
    for step in _steps(recording, only):
        record = recording.read(step.step)
        before, after = credit(step.step, record), credit(step.step, record, assignments)
        for role, change in changes(before, after).items():
            yield step.step, role, change


def _steps(recording: Recording, only: int | None) -> list[RunStep]:
    known = [step.step for step in recording.steps]
    if only is not None and only not in known:
        raise InputError(
            f"--step: given {only}, expected a finished training step of run {recording.run_id}: {known[0]} to {known[-1]}"
        )
    return [step for step in recording.steps if only in (None, step.step)]


# ---- the command ----


def main(arguments: Sequence[str]) -> int:
    """Replay and print; return 1 if a number differs by more than rounding."""
    parser = argparse.ArgumentParser(prog="triforge replay", description=__doc__)
    parser.add_argument("run", help="id of a run, or a folder of --save")
    parser.add_argument("--step", type=int)
    parser.add_argument("--what-if", action="append", default=[])
    parser.add_argument("--credit-only", action="store_true")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    recording = _recording(options.run)
    if options.save:
        recording.save(options.save)
        _print(f"wrote {options.save}: replay it on any machine: triforge replay {options.save}")
        return 0
    if options.what_if:
        _print_changes(recording, options.what_if, options.step)
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    for step, finding in replay(recording, options.step, learners=not options.credit_only):
        counts[finding.part, finding.verdict] += 1
        _print(f"step {step:>4}  {finding.part:<14}  {finding.verdict:<14}  {finding.detail}")
    for part in dict.fromkeys(part for part, _ in counts):
        verdicts = [f"{counts[part, v]} {v}" for v in VERDICTS if counts[part, v]]
        _print(f"{part}: {', '.join(verdicts)}")
    return int(any(verdict == "differs" for _, verdict in counts))


def _recording(run: str) -> Recording:
    if Path(run).exists():
        return Recording.of_folder(Path(run))
    settings = Settings.from_env()
    store = RunStore(open_database(settings.database_url))
    return Recording.of_run(store, ArtifactStore(settings.artifacts_url), run)


def _print_changes(recording: Recording, assignments: Sequence[str], only: int | None) -> None:
    _print(
        f"{'step':>5} {'model':<7} {'rows':>11} {'trained on':>13} {'mean |A|':>15} {'sign flips':>10} {'dropped':>8} {'added':>6}"
    )
    for step, role, c in what_if(recording, assignments, only):
        rows, trained = (f"{a} > {b}" for a, b in (c.rows, c.trained))
        sizes = " > ".join(f"{size:.4f}" for size in c.size)
        _print(
            f"{step:>5} {role:<7} {rows:>11} {trained:>13} {sizes:>15} {c.flipped:>10} {c.dropped:>8} {c.added:>6}"
        )


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
