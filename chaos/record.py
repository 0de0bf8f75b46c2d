"""What was played, for people (a table, Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from chaos.catalogue import SCENARIOS
from chaos.invariants import ALWAYS
from chaos.play import Result

_HEAD = ("scenario", "rounds", "seeds", "recovery s (each)", "dropped, and why", "result")


def table(results: Sequence[Result]) -> Table:
    """A row a scenario."""
    made = Table(*_HEAD)
    for row in _rows(results):
        made.add_row(*row)
    return made


def write(results: Sequence[Result], folder: Path, *, seed: int, seconds: float) -> None:
    """`chaos.json` and `chaos.md` in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    about = {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "machine": machine, "seed": seed,
        "seconds": round(seconds), "checked": {name: (check.__doc__ or "") for name, check in ALWAYS.items()},
    }  # fmt: skip
    rounds = [
        {
            "scenario": r.scenario, "round": r.number + 1, "seed": r.seed, "seconds": round(r.seconds, 1),
            "result": r.verdict, "wrong": r.wrong, **r.found,
        }
        for r in results
    ]  # fmt: skip
    (folder / "chaos.json").write_text(json.dumps({**about, "rounds": rounds}, indent=1) + "\n")
    (folder / "chaos.md").write_text(_markdown(results, about, seconds))


def _markdown(results: Sequence[Result], about: dict[str, object], seconds: float) -> str:
    lines = [
        f"{about['at']}, {about['machine']}, seed {about['seed']}: {len(results)} rounds in {seconds / 60:.0f} minutes.",
        "",
        "| " + " | ".join(("scenario", "what happens", *_HEAD[1:])) + " |",
        "|---" * (len(_HEAD) + 1) + "|",
    ]
    said = {scenario.name: scenario.sentence for scenario in SCENARIOS}
    lines += [f"| {row[0]} | {said[row[0]]} | " + " | ".join(row[1:]) + " |" for row in _rows(results)]  # fmt: skip
    return "\n".join(lines) + "\n"


def _rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(result.scenario for result in results):
        mine = [result for result in results if result.scenario == name]
        played = [result for result in mine if result.played]
        recoveries = [s for result in played for s in result.found.get("recovery_s", ())]
        lost: dict[str, int] = {}
        for result in played:
            for reason, count in result.found.get("dropped", {}).items():
                lost[reason] = lost.get(reason, 0) + count
        verdicts = dict.fromkeys(result.verdict for result in mine)
        rows.append(
            (
                name,
                f"{len(played)} of {len(mine)}",
                ", ".join(str(result.seed) for result in mine),
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
