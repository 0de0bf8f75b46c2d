"""The report: tables and sentences that follow from the results and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.settings import ARMS, BASELINES, BESIDES, TUNING_SEEDS, Family, Settings
from experiments.statistics import Mean, Test, greater, holm, mean, paired

Results = Mapping[tuple[str, int], Mapping[str, Any]]
Value = Callable[[Mapping[str, Any]], float | None]

LABEL = (
    "the expert-progress label: +1 if the command is among those that the scripted expert, knowing what the agent has seen, "
    "finds sensible"
)


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


def arms_of(family: Family) -> list[str]:
    """Return the arms of a comparison, its baseline first."""
    names = [name for name, arm in ARMS.items() if family in arm.families]
    return sorted(names, key=lambda name: name != BASELINES[family])


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
            "the last two evaluations. Differences are paired by seed. With few seeds an interval that excludes 0 is a hint, and several "
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


def write(results: Results, settings: Settings, page: Page) -> str:
    """Return the whole page as Markdown, of results by arm and seed."""
    parts = [
        _setting(settings),
        _reading(),
        "## Which tasks are played\n",
        _table(results, "tasks"),
        verdicts(results, _pairs("tasks")),
        _tasks_table(results),
        "## How votes are weighed\n",
        _table(results, "votes"),
        verdicts(results, _pairs("votes")),
        "## The reward model\n",
        _judge_table(results),
        "## The theory, measured\n",
        _theory_table(results),
    ]
    title = "Changing tasks and weighing votes: what helps a tiny policy"
    known = "what changing tasks and weighing votes did for tiny models"
    return page.text(title, known, results, TUNING_SEEDS, parts)


def _setting(s: Settings) -> str:
    return (
        f"Policy and reward model are Llamas of about 0.1 M parameters, warmed up on careless demonstrations and noisy labels, "
        f"one warm start a seed, shared by all arms. The pool has {s.train_tasks} easy tasks (place; 3 or 4 receptacles) and "
        f"{s.train_tasks} hard ones (heat, cool, clean, two; 7 or 8 receptacles); {s.heldout_tasks} held-out tasks of each kind "
        f"are never adapted. Every arm has {s.steps} training steps of {s.groups} task slots with {s.rollouts} rollouts and 4 "
        "optimiser updates; a pair of groups that measures a proposal takes two of the slots, and the candidate's rollouts do not "
        "train. Unless an arm says otherwise: preset `rlanything` with lam 0.15 and std_floor 1 as in the demo, 3 votes a "
        "step, reward model trained; `lambda_1`, `trust` and `outcome` have the preset's own lam 1 and std_floor 0.5. All parts are those of the product in one process, without HTTP and Redis.\n"
    )


def _reading() -> str:
    return (
        "Two things lie in the arms themselves. Pairs that measure proposals take slots from training: `null`, which measures "
        "and never takes, shows what that costs alone. And the ladder plays a fresh task in every slot where the others come "
        "back to the same 64: its difference holds both, difficulty and novelty.\n"
    )


def _table(results: Results, family: Family) -> str:
    titles = {name: ARMS[name].title for name in arms_of(family)}
    return success(results, titles, BASELINES[family])


def success(results: Results, titles: Mapping[str, str], baseline: str) -> str:
    """Success of arms, by name and title: start, end, and the difference to one of them."""
    rows = []
    for name, title in titles.items():
        row = [f"{title} (`{name}`)"]
        for mode in ("sampled", "greedy"):
            found = difference(results, name, baseline, at_end(mode)) if name != baseline else None
            row += [*cells(results, name, [at_start(mode), at_end(mode)]), cell(found, sign=True)]
        rows.append(row)
    head = ("arm", "sampled: start", "end", "difference", "greedy: start", "end", "difference")
    return markdown(head, rows)


def _pairs(family: Family) -> list[tuple[str, str]]:
    base = BASELINES[family]
    return [(name, base) for name in arms_of(family) if name != base] + list(BESIDES[family])


def verdicts(results: Results, pairs: Iterable[tuple[str, str]]) -> str:
    """One line a comparison whose interval excludes 0; one line for all others."""
    clear, open_ = [], []
    for name, other in pairs:
        for mode in ("sampled", "greedy"):
            found = difference(results, name, other, at_end(mode))
            if found is None:
                continue
            if abs(found.value) > found.half:
                word = "above" if found.value > 0 else "below"
                clear.append(f"- `{name}` is {word} `{other}`, {mode}: {found.text(sign=True)}.")
            else:
                open_.append(f"`{name}` from `{other}`, {mode} ({found.text(sign=True)})")
    if open_:
        clear.append(f"- No difference shown: {'; '.join(open_)}.")
    return "\n".join(clear) + "\n"


def _tasks_table(results: Results) -> str:
    kinds = [
        at_end(f"{mode}/{kind}") for kind in ("easy", "hard") for mode in ("sampled", "greedy")
    ]
    ends = [of("late", "in_band"), of("late", "all_same")]
    rows = [
        [f"`{name}`", *cells(results, name, [*kinds, accepted]), null_control(results, name), *cells(results, name, ends)]
        for name in arms_of("tasks")
    ]  # fmt: skip
    titles = (
        "arm", "easy tasks, sampled", "greedy", "hard tasks, sampled", "greedy", "tasks replaced a run",
        "unchanged tasks accepted of decided", "groups in the band, last 5 steps", "groups all alike",
    )  # fmt: skip
    return markdown(titles, rows)


def null_control(results: Results, arm: str) -> str:
    """How many unchanged candidates were accepted, over all seeds."""
    counts = [r["tasks"]["null_control"] for (name, _), r in results.items() if name == arm]
    yes = sum(c.get("accepted", 0) for c in counts)
    decided = yes + sum(c.get("rejected", 0) for c in counts)
    return f"{yes} of {decided}" if decided else ""


def _judge_table(results: Results) -> str:
    ends = ("first", "last")
    keys = [f"{k}/judge_{w}/policy_{p}" for k in ("label", "outcome") for p in ends for w in ends]
    values = [of("judge", key) for key in keys]
    rows = [[f"`{name}`", *cells(results, name, values)] for name in ARMS]
    titles = (
        "arm", "label: episodes of the first policy, first judge", "last judge", "episodes of the last policy, first judge",
        "last judge", "outcome: first policy, first judge", "last judge", "last policy, first judge", "last judge",
    )  # fmt: skip
    return (
        "Balanced accuracy of single votes on the episodes of the first and of the last step; a constant answer scores 0.5. Label: "
        f"{LABEL}. Outcome: the sign of the episode. The episodes of the first step are the same for all arms of a seed.\n\n"
        + markdown(titles, rows)
    )


def _theory_table(results: Results) -> str:
    rows = []
    for name in ARMS:
        mu = summary(results, name, of("late", "mu_within"))
        if mu is None:
            continue
        keys = ("p_plus", "p_minus", "mu", "mu_within", "f_ratio", "one_sided")
        found = cells(results, name, [of("late", key) for key in keys])
        above = [
            r["late"].get("mu_within/low", 0.0) > 1.0 for (n, _), r in results.items() if n == name
        ]
        rows.append([f"`{name}`", *found, f"{sum(above)} of {len(above)}"])
    titles = (
        "arm", "p_plus", "p_minus", "mu", "mu within tasks", "f_plus / f_minus", "groups with one outcome only",
        "seeds with mu within tasks surely above 1",
    )  # fmt: skip
    return (
        "Over the last 256 judged groups of each run (docs/methods.md says how); intervals are over seeds, the last column "
        "uses each run's own interval.\n\n" + markdown(titles, rows)
    )


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


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
