"""The table at the end and the self-contained HTML page. Both claim only what was measured in this run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rich.table import Table

from demo.episodes import Pair
from demo.gap import Gap
from services.dashboard import charts, compare, drawing
from services.dashboard.tasks import differences
from services.dashboard.templates import FOLDER, templates
from triforge.cli.train import Trained
from triforge.types import RunStep

Row = tuple[str, str, str, str]

ALONE, LOOP = "outcome only", "the loop"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A run on the same tasks and seed that learned from outcomes only, and how far the loop is above it."""

    record: Trained
    gap: Gap

    def pictures(self, loop: Trained) -> list[drawing.Picture]:
        """Draw both runs in one picture a measure."""
        runs = (self.record.steps, loop.steps)
        charts, steps = compare.overlaid(("eval/sampled", "success"), (ALONE, LOOP), runs)
        return drawing.pictures(charts, steps)

    @property
    def text(self) -> str:
        """The sentence about both."""
        return self.gap.text(ALONE, LOOP)


PAGES = "run"  # the folder next to the report with the dashboard's pages of the run
_PICTURES = [
    chart
    for chart in charts.CHARTS
    if chart.section in ("First", "Judge") or chart.title == "Seconds by phase"
]

MEANINGS = {
    "held-out success, sampled": "Share of held-out tasks solved when the policy draws each word by its probability, as it does in "
    "training. Held-out tasks are never trained on.",
    "held-out success, greedy": "The same when it always takes the most probable word.",
    "judge, balanced accuracy": "How often a vote agrees with the environment, helpful and useless steps counting alike. The "
    "environment knows which steps help; the judge does not see that.",
    "judge, raw accuracy": "The same over all steps as they come.",
    "judge, within task and step": "Of two steps of one task at the same index, one good and one bad, how often the good one has "
    "the higher mean vote; 0.5 tells nothing.",
    "votes trained on": "The share of votes with an advantage that the judge was trained on; limits leave the others out.",
    "best constant answer, raw": "The raw accuracy of a judge that always gave the same answer.",
    "judge, unparsable votes": "Share of votes that were neither +1 nor -1.",
    "groups inside the band": "A group is the rollouts (attempts) at one task in one training step. It is inside the band when its "
    "success rate is neither too low nor too high to learn from.",
    "rewriter": "Tasks outside the band go to the rewriter. Its proposal is accepted when it is sound and measurably easier or "
    "harder, as asked.",
    "null control (unchanged task as candidate)": "An unchanged task put through the same test, which should not accept it.",
    "weight versions, policy / judge": "Counted up each time that trained weights go live.",
}


def rows(record: Trained) -> list[Row]:
    """Return (measure, before, after, remark) for each row of the report's table."""
    steps = record.steps
    found: list[Row] = []
    for mode in ("sampled", "greedy"):
        key = f"eval/{mode}"
        evaluated = [s for s in steps if key in s.metrics]
        if evaluated:
            first, last = evaluated[0], evaluated[-1]
            change = 100 * (last.metrics[key] - first.metrics[key])
            title, remark = f"held-out success, {mode}", f"{change:+.1f} points"
            found.append((title, shown(first, key), shown(last, key), remark))
    found += _judge_rows(steps)
    trained = [s for s in steps if "in_band" in s.metrics]
    if trained:
        before, after = shown(trained[0], "in_band"), shown(trained[-1], "in_band")
        found.append(("groups inside the band", before, after, "first and last step"))
    found.append(_acceptance(record))
    found.append(_null_control(record))
    return [*found, _versions(steps)] if steps else found


def shown(step: RunStep, name: str) -> str:
    """Return a measure with its 95 % interval where there is one."""
    m = step.metrics
    if name not in m:
        return "-"
    if f"{name}/low" not in m or f"{name}/high" not in m:
        return f"{m[name]:.3f}"
    return f"{m[name]:.3f} [{m[f'{name}/low']:.2f}, {m[f'{name}/high']:.2f}]"


def _judge_rows(steps: Sequence[RunStep]) -> list[Row]:
    """Votes of the first and the last three training steps: one step alone is noisy."""
    judged = [s for s in steps if "judge/balanced" in s.metrics]
    if not judged:
        return []
    first, last = judged[:3], judged[-3:]
    found: list[Row] = []
    for title, key, remark in (
        (
            "judge, balanced accuracy",
            "judge/balanced",
            "a constant answer scores 0.500; mean of 3 steps",
        ),
        (
            "judge, within task and step",
            "judge/within_label",
            "pairs in order; 0.500 tells nothing",
        ),
        ("judge, raw accuracy", "judge/accuracy", "compare with the next line"),
        ("best constant answer, raw", "judge/constant", "rises as the policy's steps get better"),
        ("judge, unparsable votes", "judge/invalid", ""),
        ("votes trained on", "votes/trained_share", "of those with an advantage"),
    ):
        found.append((title, _mean(first, key), _mean(last, key), remark))
    return found


def _mean(steps: Sequence[RunStep], key: str) -> str:
    values = [s.metrics[key] for s in steps if key in s.metrics]
    return f"{sum(values) / len(values):.3f}" if values else "-"


def _acceptance(record: Trained) -> Row:
    counts = record.pool.proposals
    decided = counts.get("accepted", 0) + counts.get("rejected", 0)
    text = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none"
    return ("rewriter", "-", f"{counts.get('accepted', 0)} of {decided} decided accepted", text)


def _null_control(record: Trained) -> Row:
    counts = record.pool.null_control
    decided = counts.get("accepted", 0) + counts.get("rejected", 0)
    return (
        "null control (unchanged task as candidate)",
        "-",
        f"{counts.get('accepted', 0)} of {decided} decided accepted",
        "the test's own bound is 5 % for a task that did not change",
    )


def _versions(steps: Sequence[RunStep]) -> Row:
    first, last = steps[0], steps[-1]
    return (
        "weight versions, policy / judge",
        f"{first.policy_version} / {first.reward_version}",
        f"{last.policy_version} / {last.reward_version}",
        "each hot-reloaded into the running engine",
    )


def console_table(record: Trained) -> Table:
    table = Table(
        title=f"{record.run.name} {record.run.id}: {record.run.status}, {record.run.step} steps, {record.seconds:.0f} s"
    )
    for title in ("measure", "before", "after", "remark"):
        table.add_column(title)
    for row in rows(record):
        table.add_row(*row)
    return table


def write_report(
    record: Trained,
    notes: Sequence[str],
    path: Path,
    pair: Pair | None = None,
    baseline: Baseline | None = None,
) -> None:
    """Write the page; everything it needs is in the file. It links to the dashboard's pages if they exist."""
    steps = record.steps
    table = rows(record)
    template = templates(Path(__file__).parent).get_template("report.html")
    page = template.render(
        record=record,
        run=record.run,
        notes=notes,
        pages=f"{PAGES}/index.html" if (path.parent / PAGES).is_dir() else "",
        judged=any("judge/votes" in s.metrics for s in steps),
        style=(FOLDER / "assets" / "style.css").read_text(encoding="utf-8"),
        tiles=[row for row in table if row[0] in _TILES],
        rows=table,
        meanings=MEANINGS,
        baseline=baseline,
        apart=baseline.pictures(record) if baseline else [],
        pair=pair,
        turns=list(zip_longest(pair.before.turns, pair.after.turns)) if pair else [],
        pictures=drawing.pictures(_PICTURES, steps),
        differences=differences,
        columns=[key for key in _STEP_KEYS if any(key in s.metrics for s in steps)],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


_TILES = ("held-out success, sampled", "held-out success, greedy", "judge, balanced accuracy")
_STEP_KEYS = (
    "success", "in_band", "length", "judge/balanced", "judge/invalid", "eval/sampled", "eval/greedy", "policy/kl_k3",
    "policy/grad_norm", "reward/kl_k3", "rows/policy", "rows/reward", "infrastructure_failures", "seconds/play",
    "seconds/train", "seconds/publish", "seconds/evaluate",
)  # fmt: skip
