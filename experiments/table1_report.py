"""The report on Table 1: the planned tests, tables and pictures, from the results and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from experiments.plots import save
from experiments.report import (
    Results,
    Value,
    accepted,
    at_end,
    at_start,
    by_seed,
    cell,
    difference,
    markdown,
    of,
    summary,
)
from experiments.statistics import Test, greater, holm, mean, trend
from experiments.table1 import (
    ARMS,
    BASELINES,
    MAIN,
    ORDER,
    PLANNED,
    TUNING_SEEDS,
    Table1Settings,
)

PRIMARY = "sampled/id"
MEASURES = {
    PRIMARY: "ID, sampled", "greedy/id": "ID, greedy", "sampled/ood": "OOD, sampled", "greedy/ood": "OOD, greedy",
}  # fmt: skip
_LEVEL = 0.05


def write(
    results: Results,
    settings: Table1Settings,
    *,
    seeds: Sequence[int],
    command: str,
    minutes: float,
    machine: str,
    pictures: Mapping[str, str],
) -> str:
    """The whole page as Markdown; see `experiments.report.write`."""
    further = [name for name in ARMS if name not in MAIN]
    parts = [
        "# Outcome only, step scores, a trained reward model, adapted tasks: the paper's order on two cores\n",
        "After this page you know what each part of the loop added here, in the order of the paper's Table 1, and you can run it again.\n",
        f"Written by `{command}` after [the plan](table1-plan.md). Seeds {', '.join(map(str, seeds))}; settings were chosen on "
        f"{', '.join(map(str, TUNING_SEEDS))}, which are not reported. {len(results)} runs of {settings.steps} steps, "
        f"{minutes:.0f} minutes without the warm starts, {machine}.\n",
        "Numbers are means over seeds ± half of the 95 % interval (Student's t). Success is the share of held-out episodes, mean of "
        "the last two evaluations.\n",
        "## Success\n",
        _success(results, MAIN),
        "## The planned tests\n",
        tests(results),
        "## Further arms\n",
        _success(results, further),
        _beside(results),
        "## The judge, and what is played\n",
        _loop(results),
        "## Seed by seed\n",
        _by_seed(results, seeds),
        "## Pictures\n",
        *(_picture(title, file) for title, file in pictures.items()),
    ]
    return "\n".join(parts)


def tests(results: Results) -> str:
    """The trend of each measure; then each planned pair on the primary measure, corrected for their number."""
    rows = []
    for name, title in MEASURES.items():
        rising = trend([by_seed(results, arm, at_end(name)) for arm in ORDER])
        word = f"{' < '.join(ORDER)}, {title}" + (" (primary)" if name == PRIMARY else "")
        rows.append([word, *_test(rising), "" if rising is None else f"{rising.p:.4f}"])
    value = at_end(PRIMARY)
    found = {
        f"{first} > {second}": greater(
            by_seed(results, first, value), by_seed(results, second, value)
        )
        for first, second in PLANNED
    }
    corrected = holm({name: test.p for name, test in found.items() if test is not None})
    for name, test in found.items():
        shown = f"{corrected[name]:.4f}" if name in corrected else ""
        rows.append([f"{name}, {MEASURES[PRIMARY]}", *_test(test), shown])
    held = [name for name, p in corrected.items() if p < _LEVEL]
    fallen = [name for name, p in corrected.items() if p >= _LEVEL]
    return (
        "Trend: the slope over the arms in their order, seed by seed, in success an arm. Pairs: differences seed by seed. All one-sided "
        "t tests; p of the pairs after Holm's correction for the pairs.\n\n"
        + markdown(("hypothesis", "estimate", "t", "p alone", "p"), rows)
        + f"\n- Held at {_LEVEL}: {', '.join(held) or 'none'}.\n- Not shown: {', '.join(fallen) or 'none'}.\n"
    )


def _test(found: Test | None) -> list[str]:
    if found is None:
        return ["", "", ""]
    return [found.mean.text(sign=True), f"{found.t:.2f}", f"{found.p:.4f}"]


def _success(results: Results, arms: Sequence[str]) -> str:
    rows = []
    for name in arms:
        cells = [f"{ARMS[name].title} (`{name}`)", cell(summary(results, name, at_start(PRIMARY)))]
        rows.append(cells + [cell(summary(results, name, at_end(m))) for m in MEASURES])
    return markdown(("arm", "ID, sampled: start", *MEASURES.values()), rows)


def _beside(results: Results) -> str:
    rows = [
        [f"`{name}` - `{base}`"]
        + [cell(difference(results, name, base, at_end(m)), sign=True) for m in MEASURES]
        for name, base in BASELINES.items()
    ]
    return markdown(("difference", *MEASURES.values()), rows)


_LOOP: dict[str, Value] = {
    "label, first policy's episodes: first judge": of("judge", "label/judge_first/policy_first"),
    "last judge": of("judge", "label/judge_last/policy_first"),
    "label, last policy's: first judge": of("judge", "label/judge_first/policy_last"),
    "last judge, last policy's": of("judge", "label/judge_last/policy_last"),
    "outcome, last judge, last policy's": of("judge", "outcome/judge_last/policy_last"),
    "mu within tasks": of("late", "mu_within"),
    "groups in the band, last 5 steps": of("late", "in_band"),
    "tasks replaced a run": accepted,
}


def _loop(results: Results) -> str:
    rows = [
        [f"`{name}`", *(cell(summary(results, name, value)) for value in _LOOP.values()), _null(results, name)]
        for name in ARMS
    ]  # fmt: skip
    return (
        "Accuracy of one vote a step, balanced, on held-out episodes: by label (+1 if the shortest plan got shorter) and by "
        "outcome.\n\n" + markdown(("arm", *_LOOP, "unchanged tasks accepted of decided"), rows)
    )


def _null(results: Results, arm: str) -> str:
    counts = [r["tasks"]["null_control"] for (name, _), r in results.items() if name == arm]
    yes = sum(c.get("accepted", 0) for c in counts)
    decided = yes + sum(c.get("rejected", 0) for c in counts)
    return f"{yes} of {decided}" if decided else ""


def _by_seed(results: Results, seeds: Sequence[int]) -> str:
    rows = []
    for seed in seeds:
        found = [by_seed(results, name, at_end(m)).get(seed) for m in MEASURES for name in MAIN]
        rows.append([str(seed), *("" if v is None else f"{v:.3f}" for v in found)])
    return markdown(("seed", *(f"`{n}` {t}" for t in MEASURES.values() for n in MAIN)), rows)


# ---- pictures ----


def _picture(title: str, file: str) -> str:
    dark = file.replace(".svg", "-dark.svg")
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{title}" src="{file}"></picture>\n'
    )


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw all pictures into a folder, light and dark; returns title to the light one's file name."""
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "triforge"
    titles = {
        "Held-out success at the end, by arm": (_ends, "table1-success"),
        "Success on training tasks": (_curves("success"), "table1-steps"),
        "Accepted tasks": (_curves("tasks/accepted"), "table1-accepted"),
    }
    for drawn, name in titles.values():
        for style, end in (("default", ""), ("dark_background", "-dark")):
            with plt.style.context(style):
                figure, axes = plt.subplots(figsize=(7.0, 3.2))
                drawn(results, axes)
                figure.patch.set_alpha(0.0)
                save(figure, folder / f"{name}{end}.svg")
    return {title: f"{name}.svg" for title, (_, name) in titles.items()}


def _ends(results: Results, axes: Any) -> None:
    for place, (measure, title) in enumerate(MEASURES.items()):
        known = [(i, summary(results, arm, at_end(measure))) for i, arm in enumerate(MAIN)]
        points = [(i + 0.12 * (place - 1.5), m) for i, m in known if m is not None]
        axes.errorbar(
            [x for x, _ in points], [m.value for _, m in points],
            yerr=[min(m.half, 1.0) for _, m in points], fmt="o", markersize=4, capsize=3, label=title,
        )  # fmt: skip
    axes.set_xticks(range(len(MAIN)), labels=MAIN)
    axes.set(ylabel="success, 95 % interval over seeds", ylim=(0, None))
    axes.legend(fontsize=8)


def _curves(measure: str) -> Any:
    def drawn(results: Results, axes: Any) -> None:
        for name in MAIN:
            runs = [r["steps"] for (arm, _), r in results.items() if arm == name]
            length = min((len(run) for run in runs), default=0)
            rows = [[run[i][measure] for run in runs if measure in run[i]] for i in range(length)]
            if rows and all(rows):
                means = [mean(row).value for row in rows]
                axes.plot(range(1, length + 1), means, linewidth=1.4, label=name)
        axes.set(xlabel="training step", ylabel=measure)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)

    return drawn
