"""`python -m services.trainer replay`: a run once more from its record alone, compared number by number. No engine."""

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
    """What each training step comes to: its credit, and with `learners` each model's loss and gradient.

    Raises:
        InputError: the run has no step `only`; a record is older than what it has to say.
        NotFoundError: a record is gone.
    """
    trained = {}
    if learners:
        from services.trainer.replay.learner import ReplayedLearner  # noqa: PLC0415 (brings torch)

        trained = {role: ReplayedLearner(recording, role) for role in recording.paths}
    for step in _steps(recording, only):
        record = recording.read(step.step)
        credited = credit(step.step, record)
        yield step.step, compare(record, credited.samples.records, credited.config)
        for role, learner in trained.items():
            found = learner.step(step, credited, int(record.numbers[f"{role}_version"]))
            if found is not None:
                yield step.step, found


def what_if(
    recording: Recording, assignments: Sequence[str], only: int | None = None
) -> Iterator[tuple[int, TrainedRole, Change]]:
    """What other fields of the config (`section.field=value`) would have made of each step's responses and votes."""
    for step in _steps(recording, only):
        record = recording.read(step.step)
        before, after = credit(step.step, record), credit(step.step, record, assignments)
        for role, change in changes(before, after).items():
            yield step.step, role, change


def _steps(recording: Recording, only: int | None) -> list[RunStep]:
    found = [step for step in recording.steps if only in (None, step.step)]
    if not found:
        steps = [step.step for step in recording.steps]
        raise InputError(
            f"--step: given {only}, expected a finished training step of run {recording.run_id}: {steps[0]} to {steps[-1]}"
        )
    return found


# ---- the command ----


def main(arguments: Sequence[str]) -> int:
    """Replay and print; the exit status is 1 if something differs by more than rounding."""
    parser = argparse.ArgumentParser(prog="triforge replay", description=__doc__)
    parser.add_argument("run", help="id of a run, or a folder of --save")
    parser.add_argument("--step", type=int)
    parser.add_argument("--what-if", action="append", default=[])
    parser.add_argument("--credit-only", action="store_true")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args(arguments)
    recording = _recording(given.run)
    if given.save:
        recording.save(given.save)
        _say(f"wrote {given.save}: it replays wherever it is taken: triforge replay {given.save}")
        return 0
    if given.what_if:
        _say_changes(recording, given.what_if, given.step)
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    for step, found in replay(recording, given.step, learners=not given.credit_only):
        counts[found.part, found.verdict] += 1
        _say(f"step {step:>4}  {found.part:<14}  {found.verdict:<14}  {found.said}")
    for part in dict.fromkeys(part for part, _ in counts):
        said = [f"{counts[part, v]} {v}" for v in VERDICTS if counts[part, v]]
        _say(f"{part}: {', '.join(said)}")
    return int(any(verdict == "differs" for _, verdict in counts))


def _recording(run: str) -> Recording:
    if Path(run).exists():
        return Recording.of_folder(Path(run))
    settings = Settings.from_env()
    store = RunStore(open_database(settings.database_url))
    return Recording.of_run(store, ArtifactStore(settings.artifacts_url), run)


def _say_changes(recording: Recording, assignments: Sequence[str], only: int | None) -> None:
    _say(
        f"{'step':>5} {'model':<7} {'rows':>11} {'trained on':>13} {'mean |A|':>15} {'sign flips':>10} {'dropped':>8} {'added':>6}"
    )
    for step, role, c in what_if(recording, assignments, only):
        rows, trained = (f"{a} > {b}" for a, b in (c.rows, c.trained))
        sizes = " > ".join(f"{size:.4f}" for size in c.size)
        _say(
            f"{step:>5} {role:<7} {rows:>11} {trained:>13} {sizes:>15} {c.flipped:>10} {c.dropped:>8} {c.added:>6}"
        )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
