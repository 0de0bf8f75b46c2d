"""The report on auxiliary objectives: tables, sentences and pictures that follow from the results and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.envrl import ARMS, ESTIMATORS, LAMBDA0, EnvrlSettings
from experiments.plots import Draw, curves, differences, drawn
from experiments.report import (
    Page,
    Results,
    Value,
    at_end,
    at_start,
    by_seed,
    cells,
    each_seed,
    markdown,
    success,
    verdicts,
)
from experiments.settings import TUNING_SEEDS

_MODES = ("sampled", "greedy")
_PROBES = (
    ("sp/nll", "SP, nats a token"),
    ("id/nll", "ID, nats a token"),
    ("id/exact", "ID, exact"),
)


def _pairs(preset: str) -> tuple[tuple[str, str], ...]:
    """Return what is compared for one estimator."""
    return (
        (f"{preset}_envrl", preset),
        (f"{preset}_placebo", preset),
        (f"{preset}_envrl", f"{preset}_placebo"),
    )


def write(results: Results, settings: EnvrlSettings, page: Page) -> str:
    """Return the whole page as Markdown, of results by arm and seed."""
    parts = [_setting(settings)]
    for preset in ESTIMATORS:
        titles = {name: ARMS[name].title for name in ARMS if name.split("_")[0] == preset}
        parts += [
            f"## {preset}\n",
            success(results, titles, preset),
            verdicts(results, _pairs(preset)),
        ]
    parts += [
        "## What the policy knows of its environment\n",
        _knowledge(results),
        "## Seed by seed\n",
        _by_seed(results, page.seeds),
    ]
    title = "Predicting the environment in addition to the policy gradient: effect on a tiny policy"
    known = "what auxiliary objectives (EnvRL) did for tiny models compared with their placebo"
    return page.text(title, known, results, TUNING_SEEDS, parts)


def _setting(s: EnvrlSettings) -> str:
    return (
        "The policy is a Llama of about 0.1 M parameters, warmed up on careless demonstrations, one warm start a seed, shared by "
        f"all arms. The pool has {s.train_tasks} easy household tasks (place; 3 or 4 receptacles) and {s.train_tasks} hard ones "
        f"(heat, cool, clean, two; 7 or 8 receptacles); {s.heldout_tasks} of each kind are held out. Every arm has {s.steps} steps "
        f"of {s.groups} groups of {s.rollouts} rollouts and 4 optimiser updates a step, the same tasks in the same order, presets "
        f"`grpo` and `gigpo` as they stand, no judge. With SP and ID: state prediction and inverse dynamics of weight {LAMBDA0} "
        "each at the first step, falling to 0 along a cosine, separate items in terse wording, as many transitions as responses "
        "that the policy gradient trains on. The warm start has the prompts of both objectives, "
        f"on {s.warm.auxiliary} transitions of the demonstrations, so that a run asks for nothing that its policy has never seen. The weight "
        "was chosen on the seed that is not reported, with a policy that had not seen them. Placebo: the same, each target taken "
        "from another transition; what it gains is not due to what the targets say. All parts are those of the product in one process, without HTTP and Redis.\n"
    )


def _knowledge(results: Results) -> str:
    values = [when(probe) for probe, _ in _PROBES for when in (at_start, at_end)]
    values.append(_over_steps("policy/aux/grad_ratio"))
    rows = [[f"{a.title} (`{n}`)", *cells(results, n, values)] for n, a in ARMS.items()]
    titles = ["arm"]
    for _, title in _PROBES:
        titles += [f"{title}: start", "end"]
    return (
        "Both objectives on the transitions of the held-out episodes that the first policy played, with their true targets; the "
        "same items for all arms of a seed. Exact: greedy decoding gives the whole action. Gradient: norm of the weighted "
        "auxiliary gradient over the policy's, mean over steps.\n\n"
        + markdown((*titles, "gradient"), rows)
    )


def _over_steps(name: str) -> Value:
    def value(result: Mapping[str, Any]) -> float | None:
        found = [step[name] for step in result["steps"] if name in step]
        return sum(found) / len(found) if found else None

    return value


def _by_seed(results: Results, seeds: Sequence[int]) -> str:
    columns: dict[str, dict[int, float]] = {}
    for name, other in (pair for preset in ESTIMATORS for pair in _pairs(preset)):
        for mode in _MODES:
            one, base = (by_seed(results, arm, at_end(mode)) for arm in (name, other))
            both = {seed: one[seed] - base[seed] for seed in one.keys() & base.keys()}
            columns[f"`{name}` - `{other}`, {mode}"] = both
    return each_seed(seeds, columns, form="+.3f")


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw all pictures; see `experiments.plots.drawn`."""
    pairs = [pair for preset in ESTIMATORS for pair in _pairs(preset)[:2]]
    title = "Held-out success, difference to the policy gradient alone"
    pictures: dict[str, tuple[str, Draw]] = {
        title: ("envrl-differences", differences(results, pairs))
    }
    for preset in ESTIMATORS:
        names = [name for name in ARMS if name.split("_")[0] == preset]
        title = f"Success on training tasks, {preset}"
        pictures[title] = (f"envrl-{preset}-steps", curves(results, names))
    return drawn(folder, pictures)
