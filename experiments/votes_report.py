"""Tables of the runs on planted votes: one of all arms, and one with the learning rate that suits each best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.report import Results, Value, by_seed, cell, difference, summary
from experiments.votes import ARMS, BASELINE
from triforge.cli.terminal import markdown

_TITLES = (
    "arm", "seeds", "sampled over the steps", "sampled, end", "difference", "greedy, end", "difference",
    "movement, 1e-3 nats", "entropy", "groups alike",
)  # fmt: skip


def table(results: Results) -> str:
    """Both tables, of what is on file; differences are to outcome only at the learning rate that suits that best."""
    arms = [name for name in ARMS if any(arm == name for arm, _ in results)]
    if not arms:
        return "nothing is on file\n"
    best = best_rates(results)
    base = best.get(BASELINE)
    chosen = [name for name in arms if name in best.values()]
    return (
        "\nEach rule and judge at its best learning rate (highest mean of sampled success at the end):\n\n"
        + markdown(_TITLES, [_row(results, name, base) for name in chosen])
        + "\nAll arms:\n\n"
        + markdown(_TITLES, [_row(results, name, base) for name in arms])
        + "\nMeans over seeds ± half of the 95 % interval (Student's t); differences paired by seed with "
        f"`{base}`. Movement is the KL of the policy to the start of its step, mean over tokens, updates and steps. Entropy "
        "and groups with one outcome only: first step -> last step.\n"
    )


def best_rates(results: Results) -> dict[str, str]:
    """Return for each rule and judge the arm with the best learning rate."""
    found: dict[str, tuple[float, str]] = {}
    for name in ARMS:
        success = summary(results, name, last("sampled"))
        if success is not None:
            rule = name.partition("@")[0]
            found[rule] = max(found.get(rule, (-1.0, "")), (success.value, name))
    return {rule: name for rule, (_, name) in found.items()}


def last(name: str) -> Value:
    """Return a measure of the last evaluation."""
    return lambda result: float(result["evaluations"][-1][name])


def movement(result: Mapping[str, Any]) -> float:
    """Mean over the steps, a step without updates counting 0."""
    moved: list[float] = [step.get("policy/moved_k3", 0.0) for step in result["steps"]]
    return 1e3 * sum(moved) / len(moved)


def _row(results: Results, name: str, base: str | None) -> list[str]:
    cells = [f"`{name}`", str(len(by_seed(results, name, last("sampled")))), _course(results, name)]
    for mode in ("sampled", "greedy"):
        cells.append(cell(summary(results, name, last(mode))))
        other = None if base in (None, name) else difference(results, name, str(base), last(mode))
        cells.append(cell(other, sign=True))
    cells.append(cell(summary(results, name, movement)))
    measures = ("policy/entropy", "all_same")
    return cells + [_ends(results, name, measure) for measure in measures]


def _course(results: Results, name: str) -> str:
    """Mean of each evaluation."""
    runs = [r["evaluations"] for (arm, _), r in results.items() if arm == name]
    return " ".join(
        f"{sum(e['sampled'] for e in found) / len(found):.2f}" for found in zip(*runs, strict=True)
    )


def _ends(results: Results, name: str, measure: str) -> str:
    """Return a step measure, first and last."""
    pairs = []
    for (arm, _), run in results.items():
        values = [step[measure] for step in run["steps"] if measure in step]
        if arm == name and values:
            pairs.append((values[0], values[-1]))
    ends = [sum(values) / len(values) for values in zip(*pairs, strict=True)]
    return " -> ".join(f"{value:.2f}" for value in ends)
