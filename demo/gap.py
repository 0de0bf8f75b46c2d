"""Two runs on the same held-out tasks: how far one is above the other. `python -m demo.gap FILES` shows the records of several seeds."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import parquet

from triforge.algorithms.paired import Mean, mean
from triforge.cli.train import Trained
from triforge.environments.rows import object_in, read_file


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Success on held-out tasks in all evaluations of a run after the first.

    Attributes:
        steps: after which there was an evaluation.
        successes: by place of the task in its pool: 0 or 1 for each of `steps`.
    """

    steps: Sequence[int]
    successes: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Mean success over the evaluations of two runs.

    Attributes:
        steps: after which there was an evaluation.
        first, second: success of each run.
        difference: of the second from the first, task by task, with its interval over tasks.
    """

    steps: Sequence[int]
    first: float
    second: float
    difference: Mean

    def text(self, first: str, second: str) -> str:
        """Return the sentence about two runs of these names."""
        after = ", ".join(map(str, self.steps))
        return (
            f"held-out success, mean after steps {after}: {first} {self.first:.3f}, {second} {self.second:.3f}; difference "
            f"{self.difference.text(sign=True)} (95 % over {self.difference.count} tasks, one run of each)"
        )


def evaluated(path: Path) -> Evaluated:
    """Read the evaluations of a run from its Parquet record; none from a file that is not there."""
    rows: list[dict[str, Any]] = []
    if path.is_file():
        columns = ["step", "task_slot", "trajectory_id", "outcome"]
        table = parquet.read_table(path, columns=columns, filters=[("purpose", "=", "evaluate"), ("step", ">", 0)])  # fmt: skip
        rows = table.to_pylist()
    episodes = {row["trajectory_id"]: row for row in rows}.values()
    found = defaultdict(list)
    for row in sorted(episodes, key=lambda row: row["step"]):
        found[row["task_slot"].rpartition("-")[2]].append(int(row["outcome"] == 1))
    steps = sorted({row["step"] for row in rows})
    return Evaluated(steps=steps, successes=dict(found))


def gap(first: Evaluated, second: Evaluated) -> Gap | None:
    """Compare two runs whose pools were generated alike; None without common evaluations."""
    tasks = sorted(first.successes.keys() & second.successes.keys())
    if not tasks or list(first.steps) != list(second.steps):
        return None
    shares = [(mean(first.successes[t]).value, mean(second.successes[t]).value) for t in tasks]
    return Gap(
        steps=first.steps,
        first=mean([a for a, _ in shares]).value,
        second=mean([b for _, b in shares]).value,
        difference=mean([b - a for a, b in shares]),
    )


_KEPT: Final = (
    "success", "in_band", "judge/balanced", "judge/alarm/praise", "audit/balanced", "audit/trust", "audit/refused",
    "seconds/play", "seconds/train",
)  # fmt: skip


def facts(loop: Trained) -> dict[str, Any]:
    """Return what the page tells of the second run besides its evaluations: measures of its steps, proposals by state, seconds."""
    steps = [
        {"step": step.step} | {name: step.metrics[name] for name in _KEPT if name in step.metrics}
        for step in loop.steps
    ]
    return {"steps": steps, "proposals": dict(loop.pool.proposals), "seconds": loop.seconds}


def write(
    path: Path, seed: int, first: Evaluated, second: Evaluated, loop: Mapping[str, Any]
) -> None:
    """Write both runs of a seed as one line of JSON, and the `facts` of the second."""
    line = {"seed": seed, "first": asdict(first), "second": asdict(second), "loop": dict(loop)}
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the seeds as a table in Markdown, and their mean with its interval over seeds."""
    found: list[tuple[dict[str, Any], Gap]] = []
    for line in sorted(lines, key=lambda line: line["seed"]):
        one = gap(Evaluated(**line["first"]), Evaluated(**line["second"]))
        if one is not None:
            found.append((line, one))
    rows = [
        f"| {line['seed']} | {one.first:.3f} | {one.second:.3f} | {one.difference.text(sign=True)} | {_cells(line['loop'])} |"
        for line, one in found
    ]
    means = [one.difference.value for _, one in found]
    clear = sum(one.difference.value > one.difference.half for _, one in found)
    above = sum(value > 0 for value in means)
    end = f"{len(means)} seeds: {above} above, {clear} with an interval above 0"
    if means:
        end += f"; difference {mean(means).text(sign=True)} (95 % over seeds)"
    head = "| seed | outcome only | the loop | difference | rewrites accepted | alarm | refused | seconds |\n|---|---|---|---|---|---|---|---|"
    return "\n".join([head, *rows, "", end])


def _cells(loop: Mapping[str, Any]) -> str:
    """Return cells: accepted of decided rewrites, steps with the alarm, refused versions of the judge, seconds of the loop's run."""
    accepted, steps = loop["proposals"].get("accepted", 0), loop["steps"]
    decided = accepted + loop["proposals"].get("rejected", 0)
    alarm = sum("judge/alarm/praise" in step for step in steps)
    refused = sum(step.get("audit/refused", 0.0) for step in steps)
    return f"{accepted} of {decided} | {alarm} | {refused:.0f} | {loop['seconds']:.0f}"


if __name__ == "__main__":
    lines = [line for name in sys.argv[1:] for line in read_file(Path(name), object_in)]
    sys.stdout.write(table(lines) + "\n")
