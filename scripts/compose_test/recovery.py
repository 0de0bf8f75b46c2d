"""A backup of the stack while a run trains, the loss of everything, and the restore: what must be as it was."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.compose_test.faults import Course
from scripts.compose_test.stack import Stack

_LASTING = ("run", "steps", "weights", "plans", "measurements", "records", "folders")


def lose_everything(
    stack: Stack, course: Course, folder: Path, *, within_s: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Copy, delete, bring back, and let the run go on to its end, with the commands that operators have.

    Returns:
        Seconds and sizes for the record, and what lasts at the end.
    """
    kept = folder / "backup"
    shutil.rmtree(kept, ignore_errors=True)
    before = stack.facts()
    run = course.begin()
    course.under_way()
    copied_s = stack.script("compose_backup.sh", str(kept))
    at_step = stack.get("runs", f"/v1/runs/{run}")["step"]
    stack.wipe()
    restored_s = stack.script("compose_restore.sh", str(kept))
    came_back = stack.get("runs", f"/v1/runs/{run}")["step"]
    size = sum(path.stat().st_size for path in kept.iterdir())
    last = course.end(within_s=within_s)
    after = course.settled_facts(within_s=within_s)
    shutil.rmtree(kept, ignore_errors=True)
    notes = {
        "backup_s": copied_s, "restore_s": restored_s, "mb": size // 10**6, "step_when_copied": at_step,
        "step_after": came_back, "status": last["status"], "step": last["step"], "changed": changed(before, after),
    }  # fmt: skip
    return notes, after


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what changed of the lasting data, by run and kind."""
    there = {found["run"]["id"]: found for found in after["runs"]}
    return [
        f"run {old['run']['id']}: {kind} differ"
        for old in before["runs"]
        for kind in _LASTING
        if there.get(old["run"]["id"], {}).get(kind) != old[kind]
    ]
