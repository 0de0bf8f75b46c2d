"""Tables of on-policy distillation next to GRPO: rollouts until a student has arrived at a share of the teacher's success."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from experiments.opd import ARMS, SHARES, STUDY
from experiments.report import Results, at_start, by_seed, cell, difference, each_seed, summary
from triforge.algorithms.paired import sign_test
from triforge.cli.terminal import markdown

_STEP = STUDY.full.groups * STUDY.full.rollouts
_COMPARED = ("grpo", "opd")


def table(results: Results) -> str:
    """Return rollouts by seed and the sign test for each share, and success at the end, of what is on file."""
    goals = by_seed(results, "teacher", at_start("sampled"))
    both = sorted(seed for seed in goals if all((arm, seed) in results for arm in _COMPARED))
    ends = [
        [
            ARMS[arm].title,
            cell(summary(results, arm, at_start("sampled"))),
            cell(summary(results, arm, _end)),
        ]
        for arm in ARMS
    ]
    return (
        "".join(_arrivals(results, {seed: goals[seed] for seed in both}, share) for share in SHARES)
        + markdown(("arm", "start", "end"), ends)
        + f"\nEnd, opd - grpo: {cell(difference(results, 'opd', 'grpo', _end), sign=True)}\n\n"
        + each_seed(both, {arm: by_seed(results, arm, _end) for arm in _COMPARED})
    )


def _arrivals(results: Results, teacher: Mapping[int, float], share: float) -> str:
    """Return the table and the test for a share of the teacher's success."""
    found = {
        arm: {
            seed: arrival(results[arm, seed], share * success) for seed, success in teacher.items()
        }
        for arm in _COMPARED
    }
    rows = [
        [str(seed), f"{share * success:.3f}", *(_text(found[arm][seed]) for arm in _COMPARED)]
        for seed, success in teacher.items()
    ]
    less = sum(_number(found["opd"][s]) < _number(found["grpo"][s]) for s in teacher)
    more = sum(_number(found["opd"][s]) > _number(found["grpo"][s]) for s in teacher)
    return (
        f"\nRollouts until {share} of the teacher's success, on the mean of two evaluations in a row:\n\n"
        + markdown(("seed", "goal", *_COMPARED), rows)
        + f"\nFewer with the teacher on {less} of {len(teacher)} seeds, more on {more}: p = {sign_test(less, more):.4f} (sign test, one-sided).\n\n"
    )


def arrival(result: Mapping[str, Any], goal: float) -> int | None:
    """Return the rollouts up to the first two evaluations in a row whose mean success reaches the goal; None if none do."""
    for before, now in pairwise(result["evaluations"]):
        if (before["sampled"] + now["sampled"]) / 2 >= goal:
            return int(now["step"]) * _STEP
    return None


def _number(rollouts: int | None) -> float:
    return float("inf") if rollouts is None else float(rollouts)


def _text(rollouts: int | None) -> str:
    return f"over {STUDY.full.steps * _STEP:,}" if rollouts is None else f"{rollouts:,}"


def _end(result: Mapping[str, Any]) -> float:
    """Return the mean success of the last two evaluations."""
    return float(sum(e["sampled"] for e in result["evaluations"][-2:])) / 2
