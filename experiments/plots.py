"""Pictures of the reports, light and dark, as small SVG files that are the same for the same results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen
from matplotlib import pyplot as plt

from experiments.report import Results, at_end, summary
from triforge.algorithms.paired import mean

Draw = Callable[[Any], None]
"""Draws into axes."""
_SIZE = (7.0, 3.2)


def drawn(folder: Path, pictures: Mapping[str, tuple[str, Draw]]) -> dict[str, str]:
    """Draw pictures, by title a name and what draws it, into a folder; returns title to the light one's file name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in pictures.values():
        for style, end in (("default", ""), ("dark_background", "-dark")):
            with plt.style.context(style):
                matplotlib.rcParams["svg.hashsalt"] = "triforge"  # names without chance
                figure, axes = plt.subplots(figsize=_SIZE)
                drawing(axes)
                figure.patch.set_alpha(0.0)
                _save(figure, folder / f"{name}{end}.svg")
    return {title: f"{name}.svg" for title, (name, _) in pictures.items()}


def ends(results: Results, arms: Sequence[str], measures: Mapping[str, str]) -> Draw:
    """Measures at the end, by arm: means with intervals over seeds."""

    def drawing(axes: Any) -> None:
        for place, (measure, title) in enumerate(measures.items()):
            known = [(i, summary(results, arm, at_end(measure))) for i, arm in enumerate(arms)]
            shift = 0.12 * (place - (len(measures) - 1) / 2)
            points = [(i + shift, m) for i, m in known if m is not None]
            axes.errorbar(
                [x for x, _ in points], [m.value for _, m in points],
                yerr=[min(m.half, 1.0) for _, m in points], fmt="o", markersize=4, capsize=3, label=title,
            )  # fmt: skip
        axes.set_xticks(range(len(arms)), labels=arms)
        axes.set(ylabel="success, 95 % interval over seeds", ylim=(0, None))
        axes.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return drawing


def curves(
    results: Results, names: Sequence[str], measure: str = "success", label: str = ""
) -> Draw:
    """Return a measure of the training steps, mean over the seeds that have it; a share unless it has a `label` of its own."""

    def drawing(axes: Any) -> None:
        for name in names:
            runs = [r["steps"] for (arm, _), r in results.items() if arm == name]
            length = min((len(run) for run in runs), default=0)
            rows = [[run[i][measure] for run in runs if measure in run[i]] for i in range(length)]
            points = [(i, mean(row).value) for i, row in enumerate(rows, start=1) if row]
            if points:
                axes.plot(*zip(*points, strict=True), linewidth=1.4, label=name)
        axes.set(xlabel="training step", ylabel=label or f"{measure} on training tasks")
        axes.set_ylim(0, None if label else 1)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)

    return drawing


def _save(figure: plt.Figure, path: Path) -> None:
    """Write a picture (SVG) without date and without white space at the ends of its lines."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line.rstrip()}\n" for line in lines), encoding="utf-8")
