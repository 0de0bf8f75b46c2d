"""The record of a test: a table to read, JSON to keep."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.compose_test.faults import Outcome


def machine() -> str:
    """What it ran on."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, {platform.system()} {platform.release()}"


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
        said = f"{len(wrong)} wrong: {wrong[0]}" if wrong else "holds"
        lines.append(f"| {name} | {said} |")
    return "\n".join(lines)


def totals_line(totals: Mapping[str, Any]) -> str:
    """One sentence of counts."""
    return ", ".join(f"{name} {count}" for name, count in totals.items())


def _seconds(value: float | None) -> str:
    return "not in time" if value is None else f"{value:.0f} s"
