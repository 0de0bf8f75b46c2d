"""Results for people (a table) and for programs (JSON)."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from chaos.invariants import ALWAYS
from chaos.play import Result

_HEAD = ("scenario", "rounds", "recovery s (each)", "dropped, and why", "result")


def table(results: Sequence[Result]) -> Table:
    """Return a table with a row for each scenario, narrow enough for a terminal."""
    made = Table()
    for place, title in enumerate(_HEAD):
        made.add_column(title, no_wrap=place == 0)
    for row in _rows(results):
        made.add_row(*row)
    return made


def write(results: Sequence[Result], folder: Path, *, seed: int, seconds: float) -> None:
    """Write `chaos.json` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    about = {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "machine": machine, "seed": seed,
        "seconds": round(seconds), "checked": {name: (check.__doc__ or "") for name, check in ALWAYS.items()},
    }  # fmt: skip
    rounds = [
        {
            "scenario": r.scenario, "round": r.number + 1, "seed": r.seed, "seconds": round(r.seconds, 1),
            "result": r.verdict, "untried": r.untried, "wrong": r.wrong, **r.found,
        }
        for r in results
    ]  # fmt: skip
    (folder / "chaos.json").write_text(json.dumps({**about, "rounds": rounds}, indent=1) + "\n")


def sums(results: Sequence[Result]) -> list[str]:
    """Return the result in sentences: how many rounds held, which did not, which were not played and why."""
    by: dict[str, list[Result]] = {}
    for result in results:
        by.setdefault(result.verdict, []).append(result)
    sentences = [f"{len(by.get('held', ()))} of {len(results)} rounds held every promise"]
    if "broken" in by:
        sentences.append(
            f"broken: {_names(by['broken'])}; what each broke is listed above and in the record"
        )
    if late := by.get("not played"):
        sentences.append(
            f"not played: {_names(late)}, for {late[0].wrong[0]}; a quieter machine or a larger --minutes plays them"
        )
    if spare := by.get("left out"):
        sentences.append(
            f"left out, for {spare[0].wrong[0]}: second rounds of {', '.join(r.scenario for r in spare)}"
        )
    return sentences + [
        f"not tried: {_names([r])}, for {r.untried}" for r in by.get("not tried", ())
    ]


def _names(results: Sequence[Result]) -> str:
    return ", ".join(f"{result.scenario} {result.number + 1}" for result in results)


def _rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(result.scenario for result in results):
        mine = [result for result in results if result.scenario == name]
        played = [result for result in mine if result.played and not result.untried]
        recoveries = [s for result in played for s in result.found.get("recovery_s", ())]
        lost: dict[str, int] = {}
        for result in played:
            for reason, count in result.found.get("dropped", {}).items():
                lost[reason] = lost.get(reason, 0) + count
        verdicts = list(dict.fromkeys(result.verdict for result in mine))
        missed = sum(len(result.found.get("missed", ())) for result in played)
        verdicts += [f"{missed} of the blows hit nothing"] * bool(missed)
        rows.append(
            (
                name,
                f"{len(played)} of {len(mine)}",
                _spread(recoveries),
                ", ".join(f"{count} {reason}" for reason, count in sorted(lost.items())) or "nothing",
                ", ".join(verdicts),
            )
        )  # fmt: skip
    return rows


def _spread(values: Sequence[float]) -> str:
    """How many, and the shortest and the longest."""
    if not values:
        return ""
    return f"{min(values):.1f} to {max(values):.1f} ({len(values)})"
