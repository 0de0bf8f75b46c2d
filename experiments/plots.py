"""Pictures of the report, as small SVG files that are the same for the same results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen
from matplotlib import pyplot as plt

from experiments.report import Results, Value, arms_of, at_end, difference
from experiments.settings import BASELINES, Family
from experiments.statistics import mean

_SIZE = (7.0, 3.2)
_TITLES: dict[Family, str] = {
    "tasks": "Held-out success, difference to fixed tasks",
    "votes": "Held-out success, difference to outcome only",
}


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw all pictures into a folder; returns title to file name."""
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "triforge"
    found: dict[str, str] = {}
    for family, title in _TITLES.items():
        names = [n for n in arms_of(family) if n != BASELINES[family]]
        pairs = [(n, BASELINES[family]) for n in names]
        found[title] = differences(results, pairs, folder / f"adaptation-{family}.svg")
    for family, title in (
        ("tasks", "Success on training tasks, by arm"),
        ("votes", "The same, by weight of the votes"),
    ):
        found[title] = curves(results, arms_of(family), folder / f"adaptation-{family}-steps.svg")
    return found


def differences(results: Results, pairs: Sequence[tuple[str, str]], path: Path) -> str:
    """The difference of each arm to another one, sampled and greedy; returns the file's name."""
    figure, axes = plt.subplots(figsize=_SIZE)
    for shift, mode in ((0.12, "sampled"), (-0.12, "greedy")):
        value: Value = at_end(mode)
        points = [(i, difference(results, *pair, value)) for i, pair in enumerate(pairs)]
        known = [(i, d) for i, d in points if d is not None]
        axes.errorbar(
            [d.value for _, d in known], [-i + shift for i, _ in known],
            xerr=[min(d.half, 1.0) for _, d in known], fmt="o", markersize=4, capsize=3, label=mode,
        )  # fmt: skip
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    axes.set_yticks([-i for i in range(len(pairs))], labels=[name for name, _ in pairs])
    axes.set(xlabel="difference in success, mean over seeds and 95 % interval")
    axes.legend(fontsize=8)
    return save(figure, path)


def curves(results: Results, names: Sequence[str], path: Path) -> str:
    """Success on training tasks over the steps, mean over seeds; returns the file's name."""
    figure, axes = plt.subplots(figsize=_SIZE)
    for name in names:
        runs = [r["steps"] for (arm, _), r in results.items() if arm == name]
        length = min((len(run) for run in runs), default=0)
        means = [
            mean([run[i]["success"] for run in runs if "success" in run[i]] or [0.0])
            for i in range(length)
        ]
        axes.plot(range(1, length + 1), [m.value for m in means], linewidth=1.4, label=name)
    axes.set(xlabel="training step", ylabel="success on training tasks", ylim=(0, 1))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)
    return save(figure, path)


def save(figure: plt.Figure, path: Path) -> str:
    """Write a picture (SVG) without date and without white space at the ends of its lines; returns the file's name."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line.rstrip()}\n" for line in lines), encoding="utf-8")
    return path.name
