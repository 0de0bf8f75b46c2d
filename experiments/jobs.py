"""Many runs, some at a time, each in a process of its own; each writes a file of its own, and what has one is never run again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triforge.environments.rows import object_in, read_file

Tell = Callable[[str], None]
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """One run: an arm and a seed."""

    arm: str
    seed: int


def read(path: Path) -> dict[str, Any]:
    """Return a run from its file: each line adds one or several to `steps` or `evaluations`, or gives results known at the end.

    A file on record has one line, in which `steps` is a list for each measure.
    """
    found: dict[str, Any] = {"steps": [], "evaluations": []}
    for line in read_file(path, object_in):
        for name, value in line.items():
            if name == "steps" and all(isinstance(one, list) for one in value.values()):
                found[name] = _rows(value)
            elif name in ("steps", "evaluations"):
                found[name] += value if isinstance(value, list) else [value]
            else:
                found[name] = value
    return found


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    length = max(map(len, columns.values()), default=0)
    return [{k: v[i] for k, v in columns.items() if v[i] is not None} for i in range(length)]


def finished(files: Mapping[Job, Path]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the runs on file by (arm, seed)."""
    return {(job.arm, job.seed): read(path) for job, path in files.items() if path.is_file()}


def run_all(
    files: Mapping[Job, Path],
    command: Callable[[Job], list[str]],
    *,
    processes: int,
    tell: Tell,
) -> list[Job]:
    """Run what is not on file; returns the jobs that failed.

    A job's process prints its lines as they come, into `.part` next to its file until it has ended well; other output goes
    to `.log`.

    Args:
        files: of the jobs, in order.
        command: the arguments of a job's process after the interpreter.
        processes: at a time; each has one thread.
        tell: gets a progress line.
    """
    waiting = [job for job, path in files.items() if not path.is_file()]
    if files:
        tell(f"{len(files)} runs, {len(files) - len(waiting)} of them on file")
    failed: list[Job] = []
    running: list[tuple[Job, subprocess.Popen[bytes], float]] = []
    started, total = time.monotonic(), len(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                job = waiting.pop(0)
                running.append((job, _start(command(job), files[job]), time.monotonic()))
            time.sleep(_POLL_S)
            for entry in [e for e in running if e[1].poll() is not None]:
                running.remove(entry)
                job, child, since = entry
                if child.returncode == 0:
                    files[job].with_suffix(".part").replace(files[job])
                else:
                    failed.append(job)
                ended = total - len(waiting) - len(running)
                elapsed = time.monotonic() - started
                left = elapsed / ended * (total - ended)
                word = "failed" if job in failed else "done"
                tell(
                    f"{job.arm}, seed {job.seed}: {word} in {time.monotonic() - since:.0f} s; {ended} of {total}, "
                    f"about {left / 60:.0f} min left"
                )
    finally:
        for _, child, _ in running:
            child.kill()
            child.wait()
    return failed


def _start(arguments: list[str], path: Path) -> subprocess.Popen[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".log").open("wb") as log, path.with_suffix(".part").open("wb") as lines:
        return subprocess.Popen(  # noqa: S603 (a fixed argument vector, no shell)
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
