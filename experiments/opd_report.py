"""Tables of on-policy distillation next to GRPO: rollouts until a student has arrived at its share of the teacher's success."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from experiments.opd import ARMS, SHARE, STUDY
from experiments.report import Results, at_start, by_seed, cell, difference, each_seed, summary
from triforge.algorithms.paired import sign_test
from triforge.cli.terminal import markdown

_STEP = STUDY.full.groups * STUDY.full.rollouts
_COMPARED = ("grpo", "opd")


def table(results: Results) -> str:
    """Return rollouts by seed, the sign test, and success at the end, of what is on file."""
    goals = {
        seed: SHARE * t for seed, t in by_seed(results, "teacher", at_start("sampled")).items()
    }
    found = {
        arm: {
            seed: arrival(results[arm, seed], goal)
            for seed, goal in goals.items()
            if (arm, seed) in results
        }
        for arm in _COMPARED
    }
    both = sorted(set.intersection(*(set(own) for own in found.values())))
    rows = [
        [str(seed), f"{goals[seed]:.3f}", *(_text(found[arm][seed]) for arm in _COMPARED)]
        for seed in both
    ]
    less = sum(_number(found["opd"][s]) < _number(found["grpo"][s]) for s in both)
    more = sum(_number(found["opd"][s]) > _number(found["grpo"][s]) for s in both)
    ends = [
        [
            ARMS[arm].title,
            cell(summary(results, arm, at_start("sampled"))),
            cell(summary(results, arm, _end)),
        ]
        for arm in ARMS
    ]
    return (
        "\nRollouts until nine tenths of the teacher's success, on the mean of two evaluations in a row:\n\n"
        + markdown(("seed", "goal", *_COMPARED), rows)
        + f"\nFewer with the teacher on {less} of {len(both)} seeds, more on {more}: p = {sign_test(less, more):.4f} (sign test, one-sided).\n\n"
        + markdown(("arm", "start", "end"), ends)
        + f"\nEnd, opd - grpo: {cell(difference(results, 'opd', 'grpo', _end), sign=True)}\n\n"
        + each_seed(both, {arm: by_seed(results, arm, _end) for arm in _COMPARED})
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
