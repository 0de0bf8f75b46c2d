"""Verdict and tables of a test's record."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.compose_test.faults import Outcome

PARTS = ("built", "up", "peace", "checks", "restored", "sidecar", "programs")  # of a whole test


def machine() -> str:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, {platform.system()} {platform.release()}"


def failures(story: Mapping[str, Any]) -> list[str]:
    """Why a test did not pass; empty if it did.

    Args:
        story: of a `Record`.
    """
    missing = [f"{part}: not reached" for part in PARTS if part not in story]
    late = [
        f"{o['what']} {o['service'] or 'all'}: not over it within {o['limit_s']:.0f} s"
        for o in story["faults"]
        if not Outcome(**o).recovered
    ]
    checks = [
        f"{name.split(':')[0]}{where}: {len(wrong)} wrong, {wrong[0]}"
        for part, where in (("checks", ""), ("restored", " after the restore"))
        for name, wrong in story.get(part, {}).get("checks", {}).items()
        if wrong
    ]
    peace = story.get("peace", {}).get("status", "finished")
    unfinished = [] if peace == "finished" else [f"the run in peace: {peace}"]
    changed = story.get("restored", {}).get("changed", [])
    further = [
        one for part in ("sidecar", "programs") for one in story.get(part, {}).get("wrong", [])
    ]
    return [*missing, *unfinished, *late, *checks, *changed, *further]


def report(story: Mapping[str, Any]) -> str:
    """Markdown of what there is of it."""
    parts = [_first_lines(story), fault_table([Outcome(**o) for o in story["faults"]])]
    if "checks" in story:
        parts += [check_table(story["checks"]["checks"]), totals_line(story["checks"]["totals"])]
    if "restored" in story:
        found = story["restored"]
        parts.append(
            f"Backup of {found['mb']} MB at step {found['step_when_copied']} in {found['backup_s']:.0f} s, restore in "
            f"{found['restore_s']:.0f} s; the run went on at step {found['step_after']} and is {found['status']} at step {found['step']}."
        )
        parts.append(check_table(found["checks"]))
    if "sidecar" in story:
        found = story["sidecar"]
        parts.append(f"Sidecar: healthy after {found['up_s']:.0f} s, {found['step']} steps from outside in {found['run_s']:.0f} s: {found['wrong'] or 'as expected'}.")  # fmt: skip
    if "programs" in story:
        found = story["programs"]
        parts.append(f"Programs: healthy after {found['up_s']:.0f} s, two steps in {found['run_s']:.0f} s: {found['wrong'] or 'as expected'}.")  # fmt: skip
    return "\n\n".join(parts)


def _first_lines(story: Mapping[str, Any]) -> str:
    begun = story.get("begun", {})
    seconds = [
        f"{what} {story[part]['took_s']:.0f} s"
        for part, what in (
            ("built", "images built in"),
            ("up", "all healthy after"),
            ("peace", "a run in peace took"),
        )
        if part in story
    ]
    return f"{begun.get('at')}, {begun.get('machine')}, {begun.get('docker')}; {', '.join(seconds)}"


def fault_table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: what was done to whom, and how long it took."""
    lines = ["| what was done | to | healthy again after | next step committed after |", "|---|---|---|---|"]  # fmt: skip
    for outcome in outcomes:
        who = outcome.service or "all"
        lines.append(f"| {outcome.what} | {who} | {_seconds(outcome.well_s)} | {_seconds(outcome.step_s)} |")  # fmt: skip
    return "\n".join(lines)


def check_table(checks: Mapping[str, Sequence[str]]) -> str:
    """Markdown: what was checked, and what was found."""
    lines = ["| checked | found |", "|---|---|"]
    for name, wrong in checks.items():
        sentence = f"{len(wrong)} wrong: {wrong[0]}" if wrong else "holds"
        lines.append(f"| {name} | {sentence} |")
    return "\n".join(lines)


def totals_line(totals: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in totals.items())


def _seconds(value: float | None) -> str:
    return "not in time" if value is None else f"{value:.0f} s"
