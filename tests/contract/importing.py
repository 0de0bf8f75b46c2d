"""Imports parts of the repository in forks of one process, so that each starts with what they share, and says what came of it.

`python -m tests.contract.importing JOBS`: a JSON list of jobs, each done in a fork.

    {"load": [modules], "then": [jobs]}              load modules once for several jobs
    {"name", "package", "refused": [names], "but"}   import all modules of a package while others are refused
    {"name", "program"}                              run imports, to see what they load

Prints a JSON object: what each job tried to import in vain, or all that was loaded at the end of its program.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any


class Wall(MetaPathFinder):
    """Refuses to find some packages, and remembers who was asked for."""

    def __init__(self, refused: Sequence[str]) -> None:
        self._refused = set(refused)
        self.tried: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        parts = name.split(".")
        if self._refused & {".".join(parts[: n + 1]) for n in range(len(parts))}:
            self.tried.append(name)
            raise ImportError(f"{name} may not be imported here")


def import_all(package: str, but: str) -> None:
    """Import every module of a package that a program may import, but those below one of them."""
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    for name in (module.name for module in found):
        skipped = ".migrations" in name or name.endswith("__main__") or (but and but in name)
        if not skipped:
            importlib.import_module(name)


def do(job: dict[str, Any]) -> dict[str, list[str]]:
    """Return the outcome of a job by its name: empty, if it is to import without others and does."""
    if "then" in job:
        for name in job["load"]:
            importlib.import_module(name)
        return do_all(job["then"])
    if "program" in job:
        exec(job["program"], {})
        return {job["name"]: sorted(sys.modules)}
    wall = Wall(job["refused"])
    present = sorted(set(job["refused"]) & set(sys.modules))
    sys.meta_path.insert(0, wall)
    import_all(job["package"], job.get("but", ""))
    return {job["name"]: present + wall.tried}


def do_all(jobs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Do each job in a child of this process; one that fails leads to its traceback."""
    results: dict[str, list[str]] = {}
    for job in jobs:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                outcome = do(job)
            except BaseException:  # noqa: BLE001 - the parent hears of it
                outcome = {job.get("name", "load"): [traceback.format_exc()]}
            with os.fdopen(writing, "w") as out:
                json.dump(outcome, out)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answers:
            results |= json.load(answers)
        os.waitpid(child, 0)
    return results


if __name__ == "__main__":
    sys.stdout.write(json.dumps(do_all(json.loads(sys.argv[1]))))
