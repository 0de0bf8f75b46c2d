"""Two runs on the same held-out tasks: how far one is above the other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pyarrow import parquet

from triforge.algorithms.paired import Mean, mean

Successes = dict[str, list[bool]]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Success on held-out tasks, sampled, over all evaluations after the first.

    Attributes:
        steps: after which there was an evaluation.
        first, second: success of each run.
        difference: of the second from the first, task by task, with its interval over tasks.
    """

    steps: tuple[int, ...]
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


def gap(first: Path, second: Path) -> Gap | None:
    """Compare the records of two runs whose pools were generated alike; None without a common evaluation after the first.

    Args:
        first, second: Parquet records.
    """
    (one, of_one), (two, of_two) = _evaluated(first), _evaluated(second)
    tasks = sorted(one.keys() & two.keys())
    if not tasks or of_one != of_two:
        return None
    shares = [(_share(one[task]), _share(two[task])) for task in tasks]
    return Gap(
        steps=of_one,
        first=mean([a for a, _ in shares]).value,
        second=mean([b for _, b in shares]).value,
        difference=mean([b - a for a, b in shares]),
    )


def _evaluated(path: Path) -> tuple[Successes, tuple[int, ...]]:
    """Return the successes by place of the task in its pool, and the steps of the evaluations."""
    found, steps = defaultdict(list), set()
    if path.is_file():
        columns = ["step", "task_slot", "trajectory_id", "outcome"]
        table = parquet.read_table(path, columns=columns, filters=[("purpose", "=", "evaluate"), ("step", ">", 0)])  # fmt: skip
        episodes = {row["trajectory_id"]: row for row in table.to_pylist()}
        for row in episodes.values():
            place = row["task_slot"].rpartition("-")[2]
            found[place].append(row["outcome"] == 1)
            steps.add(row["step"])
    return found, tuple(sorted(steps))


def _share(successes: list[bool]) -> float:
    return sum(successes) / len(successes)
