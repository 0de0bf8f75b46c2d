"""Parts of a report: tables and sentences that follow from the results and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triforge.algorithms.paired import Mean, Test, greater, holm, mean, paired
from triforge.cli.terminal import markdown

Results = Mapping[tuple[str, int], Mapping[str, Any]]
Value = Callable[[Mapping[str, Any]], float | None]


def at_end(name: str) -> Value:
    """Mean of an evaluation's measure over the last evaluations."""

    def value(result: Mapping[str, Any]) -> float | None:
        late = [e[name] for e in result["evaluations"] if e["step"] > 0]
        return sum(late) / len(late) if late else None

    return value


def at_start(name: str) -> Value:
    """Return the measure before training."""
    return lambda result: float(result["evaluations"][0][name])


def of(part: str, name: str) -> Value:
    """Return a number of `late`, `judge` or `tasks`."""

    def value(result: Mapping[str, Any]) -> float | None:
        found = result[part].get(name)
        return None if found is None else float(found)

    return value


def accepted(result: Mapping[str, Any]) -> float | None:
    """How many tasks were replaced."""
    return float(result["tasks"]["proposals"].get("accepted", 0))


def by_seed(results: Results, arm: str, value: Value) -> dict[int, float]:
    """Return the value of every seed that has one."""
    found = {seed: value(result) for (name, seed), result in results.items() if name == arm}
    return {seed: number for seed, number in found.items() if number is not None}


def summary(results: Results, arm: str, value: Value) -> Mean | None:
    """Mean over seeds."""
    values = list(by_seed(results, arm, value).values())
    return mean(values) if values else None


def difference(results: Results, arm: str, baseline: str, value: Value) -> Mean | None:
    """Mean over seeds of the paired difference."""
    return paired(by_seed(results, arm, value), by_seed(results, baseline, value))


@dataclass(frozen=True, kw_only=True)
class Page:
    """How a page was made, and the frame that all of them have.

    Attributes:
        seeds: that were asked for.
        command: that made it.
        minutes: of all runs together, by their own clocks, divided by the processes at a time.
        machine: in words.
        pictures: title to the light picture's file name in the page's folder.
    """

    seeds: Sequence[int]
    command: str
    minutes: float
    machine: str
    pictures: Mapping[str, str]

    def text(
        self, title: str, known: str, results: Results, tuned: Sequence[int], parts: Iterable[str]
    ) -> str:
        """Return the whole page as Markdown: what a reader knows after it, where it is from, its parts, the pictures."""
        head = (
            f"# {title}\n",
            f"After this page you know {known}, and you can run it again.\n",
            f"Written by `{self.command}`. Seeds {_listed(self.seeds)}; settings were chosen on other seeds, which are not reported: "
            f"{_listed(tuned)}. {len(results)} runs, {self.minutes:.0f} minutes without the warm starts, {self.machine}.\n",
            "Numbers are means over seeds ± half of the 95 % interval (Student's t). Success is the share of held-out episodes, mean of "
            "the last evaluations. Differences are paired by seed. With few seeds an interval that excludes 0 is a hint, and several "
            "comparisons stand side by side; an interval that contains 0 does not show that there is no difference.\n",
        )
        pictures = [_picture(*entry) for entry in self.pictures.items()]
        return "\n".join((*head, *parts, "## Pictures\n", *pictures))


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _picture(title: str, file: str) -> str:
    dark = file.replace(".svg", "-dark.svg")
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{title}" src="{file}"></picture>\n'
    )


def null_control(results: Results, arm: str) -> str:
    """How many unchanged candidates were accepted, over all seeds."""
    counts = [r["tasks"]["null_control"] for (name, _), r in results.items() if name == arm]
    yes = sum(c.get("accepted", 0) for c in counts)
    decided = yes + sum(c.get("rejected", 0) for c in counts)
    return f"{yes} of {decided}" if decided else ""


def cell(found: Mean | None, *, sign: bool = False) -> str:
    """Return a mean in a table; empty if there is none."""
    return "" if found is None else found.text(sign=sign)


def each_seed(
    seeds: Sequence[int], columns: Mapping[str, Mapping[int, float]], *, form: str = ".3f"
) -> str:
    """Values by column and seed as a table."""
    rows = [
        [str(seed), *(format(c[seed], form) if seed in c else "" for c in columns.values())]
        for seed in seeds
    ]
    return markdown(("seed", *columns), rows)


def cells(results: Results, arm: str, values: Iterable[Value]) -> list[str]:
    """Means over the seeds of an arm in a table."""
    return [cell(summary(results, arm, value)) for value in values]


HYPOTHESES = ("hypothesis", "estimate", "t", "p alone", "p")
_LEVEL = 0.05


def planned_pairs(
    results: Results, pairs: Sequence[tuple[str, str]], measure: str, title: str
) -> tuple[list[list[str]], str]:
    """Rows of `HYPOTHESES`, whether the first arm of each pair ends above the second, by Holm's correction; and which held."""
    value = at_end(measure)
    found = {
        f"{a} > {b}": greater(by_seed(results, a, value), by_seed(results, b, value))
        for a, b in pairs
    }
    corrected = holm({name: 1.0 if test is None else test.p for name, test in found.items()})
    rows = [
        [f"{name}, {title}", *tested(test), f"{corrected[name]:.4f}" if test else ""]
        for name, test in found.items()
    ]
    held = [name for name, p in corrected.items() if p < _LEVEL]
    fallen = [name for name, p in corrected.items() if p >= _LEVEL]
    return (
        rows,
        f"\n- Held at {_LEVEL}: {', '.join(held) or 'none'}.\n- Not shown: {', '.join(fallen) or 'none'}.\n",
    )


def tested(found: Test | None) -> list[str]:
    """Estimate, t and p of a test."""
    if found is None:
        return ["", "", ""]
    return [found.mean.text(sign=True), f"{found.t:.2f}", f"{found.p:.4f}"]
