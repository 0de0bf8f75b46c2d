"""Pictures of a run, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from triforge.types import RunStep

PHASES = ("play", "credit", "train", "publish", "adapt", "record", "evaluate")
_SIZE, _DPI = (7.0, 3.6), 110


def draw(steps: Sequence[RunStep], folder: Path) -> dict[str, Path]:
    """Draw all pictures; returns title to file."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "Success of the policy": _lines(
            steps, folder / "success.png", "share of episodes", {
                "held out, sampled": "eval/sampled", "held out, greedy": "eval/greedy", "training tasks": "success",
            },
        ),
        "The judge's votes": _lines(
            steps, folder / "judge.png", "share of votes", {
                "balanced accuracy": "judge/balanced", "accuracy": "judge/accuracy",
                "best constant answer": "judge/constant", "agreement with outcome": "judge/outcome",
            },
        ),
        "Tasks inside the band": _lines(
            steps, folder / "band.png", "share of groups", {"in band": "in_band", "all rollouts alike": "all_same"}
        ),
        "What the votes were worth": _bands(
            steps, folder / "theory.png", "mu, f_plus / f_minus", {
                "mu within tasks": "theory/mu_within", "f_plus / f_minus": "theory/f_ratio",
            },
        ),
        "Seconds by phase": _phases(steps, folder / "seconds.png"),
    }  # fmt: skip


def _lines(steps: Sequence[RunStep], path: Path, label: str, series: dict[str, str]) -> Path:
    figure, axes = plt.subplots(figsize=_SIZE, dpi=_DPI)
    for title, key in series.items():
        points = [(s.step, s.metrics[key]) for s in steps if key in s.metrics]
        if points:
            axes.plot(
                *zip(*points, strict=True), marker="o", markersize=3, linewidth=1.4, label=title
            )
    axes.set(xlabel="training step", ylabel=label, ylim=(0, 1))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8)
    return _save(figure, path)


def _bands(steps: Sequence[RunStep], path: Path, label: str, series: dict[str, str]) -> Path:
    """Lines with their intervals, and a line at 1."""
    figure, axes = plt.subplots(figsize=_SIZE, dpi=_DPI)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    for title, key in series.items():
        points = [(s.step, s.metrics) for s in steps if key in s.metrics]
        if points:
            numbers = [n for n, _ in points]
            drawn = axes.plot(numbers, [m[key] for _, m in points], linewidth=1.4, label=title)
            low = [m.get(f"{key}/low", m[key]) for _, m in points]
            high = [m.get(f"{key}/high", m[key]) for _, m in points]
            axes.fill_between(numbers, low, high, color=drawn[0].get_color(), alpha=0.15)
    axes.set(xlabel="training step", ylabel=label, ylim=(0, 3))
    axes.grid(alpha=0.3)
    if len(axes.lines) > 1:
        axes.legend(fontsize=8)
    return _save(figure, path)


def _phases(steps: Sequence[RunStep], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=_SIZE, dpi=_DPI)
    numbers, bottom = [s.step for s in steps], [0.0] * len(steps)
    for phase in PHASES:
        heights = [s.metrics.get(f"seconds/{phase}", 0.0) for s in steps]
        axes.bar(numbers, heights, bottom=bottom, label=phase, width=0.8)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set(xlabel="training step", ylabel="seconds")
    axes.legend(fontsize=8, ncols=2)
    return _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> Path:
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path
