"""The table at the end and the self-contained HTML page. Both claim only what was measured in this run."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from demo.plots import PHASES
from demo.session import Record
from demo.theory import BIN_TITLES, TITLES, answers, bin_lines, lines
from triforge.algorithms.theory import wilson
from triforge.types import Proposal, RunStep

Row = tuple[str, str, str, str]


def rows(record: Record) -> list[Row]:
    """(what, before, after, remark) of the report's table."""
    steps = record.steps
    found: list[Row] = []
    for mode in ("sampled", "greedy"):
        evaluated = [s for s in steps if f"eval/{mode}" in s.metrics]
        if evaluated:
            first, last = evaluated[0], evaluated[-1]
            change = 100 * (last.metrics[f"eval/{mode}"] - first.metrics[f"eval/{mode}"])
            found.append(
                (
                    f"held-out success, {mode}",
                    _share(first, mode),
                    _share(last, mode),
                    f"{change:+.1f} points",
                )
            )
    found += _judge_rows(steps)
    trained = [s for s in steps if "in_band" in s.metrics]
    if trained:
        found.append(
            (
                "groups inside the band",
                f"{trained[0].metrics['in_band']:.2f}",
                f"{trained[-1].metrics['in_band']:.2f}",
                "first and last step",
            )
        )
    found.append(_acceptance(record))
    found.append(_null_control(record))
    return [*found, _versions(steps)] if steps else found


def _share(step: RunStep, mode: str) -> str:
    share, count = step.metrics[f"eval/{mode}"], step.metrics[f"eval/{mode}_episodes"]
    low, high = wilson(share * count, count)
    return f"{share:.3f} [{low:.2f}, {high:.2f}]"


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
        ("judge, raw accuracy", "judge/accuracy", "read beside the next line"),
        ("best constant answer, raw", "judge/constant", "rises as the policy's steps get better"),
        ("judge, unparsable votes", "judge/invalid", ""),
    ):
        found.append((title, _mean(first, key), _mean(last, key), remark))
    return found


def _mean(steps: Sequence[RunStep], key: str) -> str:
    values = [s.metrics[key] for s in steps if key in s.metrics]
    return f"{sum(values) / len(values):.3f}" if values else "-"


def _acceptance(record: Record) -> Row:
    counts = record.pool.proposals
    decided = counts.get("accepted", 0) + counts.get("rejected", 0)
    text = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none"
    return ("rewriter", "-", f"{counts.get('accepted', 0)} of {decided} decided accepted", text)


def _null_control(record: Record) -> Row:
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


def console_table(record: Record) -> Table:
    """The table for the terminal."""
    table = Table(
        title=f"{record.run.name} {record.run.id}: {record.run.status}, {record.run.step} steps, {record.seconds:.0f} s"
    )
    for title in ("measure", "before", "after", "remark"):
        table.add_column(title)
    for row in rows(record):
        table.add_row(*row)
    return table


def write_report(
    record: Record, pictures: dict[str, Path], notes: Sequence[str], path: Path
) -> None:
    """Write the page; pictures are embedded, so the file can be sent around."""
    parts = [
        f"<h1>triforge: {html.escape(record.run.name)}</h1>",
        f"<p>Run <code>{record.run.id}</code> ended as <b>{record.run.status}</b> after {record.run.step} training steps "
        f"and {record.seconds:.0f} s from submission. {html.escape(record.run.reason)}</p>",
        "<h2>What was measured</h2>",
        _html_table(("measure", "before", "after", "remark"), rows(record)),
        "<p>Intervals are 95 % Wilson intervals over held-out episodes. All tasks were generated; nothing here is a "
        "published benchmark. One run is one seed: see the table of seeds in the documentation before you draw a "
        "conclusion. That tasks were rewritten does not show that rewriting helped; that needs a run without it.</p>",
        *(f"<p>{html.escape(note)}</p>" for note in notes),
        "<h2>Pictures</h2>",
        *(
            f"<figure><figcaption>{html.escape(title)}</figcaption>{_image(file)}</figure>"
            for title, file in pictures.items()
        ),
        *_theory(record.steps),
        "<h2>Rewritten tasks</h2>",
        _proposals(record.proposals),
        "<h2>Steps</h2>",
        _steps(record.steps),
    ]
    body = "\n".join(parts)
    path.write_text(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>triforge report</title>"
        f"<style>{_STYLE}</style></head><body>{body}</body></html>",
        encoding="utf-8",
    )


def _theory(steps: Sequence[RunStep]) -> list[str]:
    """What the votes were worth; nothing for a run without votes."""
    if not lines(steps):
        return []
    return [
        "<h2>What the votes were worth</h2>",
        *(f"<p>{html.escape(answer)}</p>" for answer in answers(steps)),
        _html_table(TITLES, lines(steps)),
        "<p>Intervals are 95 %, by leaving out one group at a time: votes on one trajectory, and trajectories of one task, "
        "are not independent. By difficulty, over all steps, without intervals:</p>",
        _html_table(BIN_TITLES, bin_lines(steps)),
    ]


def _proposals(proposals: Sequence[Proposal]) -> str:
    if not proposals:
        return "<p>No task left the band, or rewriting is switched off.</p>"
    lines = []
    for p in proposals:
        checks = ", ".join(f"{c.name}: {'ok' if c.passed else 'failed'}" for c in p.checks)
        lines.append(
            (
                str(p.step), p.direction, p.instruction_before, p.instruction_after or "-", _verdict(p),
                _counts(p.parent_counts), _counts(p.candidate_counts), p.reason, p.diagnosis, p.answer, checks,
            )
        )  # fmt: skip
    titles = (
        "step",
        "direction",
        "before",
        "after",
        "verdict",
        "parent",
        "candidate",
        "reason",
        "diagnosis",
        "answer",
        "checks",
    )
    return _html_table(titles, lines)


def _verdict(proposal: Proposal) -> str:
    """A null control is never activated, so its state says nothing; the test's word on it does."""
    return f"null control: {proposal.verdict}" if proposal.null_control else proposal.state


def _counts(counts: Sequence[tuple[int, int]]) -> str:
    return f"{sum(s for s, _ in counts)}/{sum(m for _, m in counts)}"


_STEP_KEYS = (
    "success", "in_band", "length", "judge/balanced", "judge/invalid", "eval/sampled", "eval/greedy", "policy/kl_k3",
    "policy/grad_norm", "reward/kl_k3", "rows/policy", "rows/reward", "infrastructure_failures", "seconds/play",
    "seconds/train", "seconds/publish", "seconds/evaluate",
)  # fmt: skip


def _steps(steps: Sequence[RunStep]) -> str:
    keys = [key for key in _STEP_KEYS if any(key in s.metrics for s in steps)]
    lines = [
        (
            str(s.step),
            f"{s.policy_version}/{s.reward_version}",
            *(f"{s.metrics[k]:.3g}" if k in s.metrics else "" for k in keys),
        )
        for s in steps
    ]
    return _html_table(("step", "versions", *keys), lines)


def _seconds(steps: Sequence[RunStep]) -> Row:
    """Mean seconds of each phase of a training step; an evaluation counts where there was one."""
    trained = [s for s in steps if s.step > 0]
    parts = []
    for phase in PHASES:
        values = [s.metrics[f"seconds/{phase}"] for s in trained if f"seconds/{phase}" in s.metrics]
        if values:
            parts.append(f"{phase} {sum(values) / len(values):.2f}")
    return (
        "seconds a step, by phase",
        "-",
        ", ".join(parts),
        "means; both learners train at the same time",
    )


def _html_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
        for line in lines
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='' src='data:image/png;base64,{data}'>"


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "table{border-collapse:collapse;font-size:13px}th,td{border:1px solid #ccc;padding:.25rem .5rem;text-align:left;"
    "vertical-align:top}th{background:#f3f3f3}.wide{overflow-x:auto}figure{display:inline-block;margin:.5rem}"
    "figcaption{font-weight:600}img{max-width:100%}"
)
