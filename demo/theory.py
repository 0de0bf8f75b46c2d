"""Theorems 1 and 2 in the report: what the votes were worth, and whether balancing the tasks kept both sides taught."""

from __future__ import annotations

from collections.abc import Sequence

from triforge.types import RunStep

TITLES = ("measure", "first step", "last step", "recent groups at the end", "remark")
Line = tuple[str, ...]

_MEASURES = (
    ("p_plus", "P(vote = +1) on steps of successes"),
    ("p_minus", "P(vote = -1) on steps of failures"),
    ("mu", "p_plus + p_minus; Theorem 1 asks for more than 1"),
    ("mu_within", "mu among rollouts of one task, which is what advantages compare"),
    ("precision", "a success's step has the higher mean vote than the same step of a failure"),
    ("f_plus", "weight with which p_plus is taught"),
    ("f_minus", "weight with which p_minus is taught"),
    ("f_ratio", "f_plus / f_minus; Theorem 2 asks for a bounded one"),
)
_FEW = 5  # steps at either end that are compared


def judged(steps: Sequence[RunStep]) -> list[RunStep]:
    """Return the steps that have votes."""
    return [s for s in steps if "theory/groups" in s.metrics]


def lines(steps: Sequence[RunStep]) -> list[Line]:
    """Return the table of all tasks; each estimate with its 95 % interval."""
    known = judged(steps)
    if not known:
        return []
    first, last = known[0], known[-1]
    return [
        (
            name,
            shown(first, f"theory/{name}"),
            shown(last, f"theory/{name}"),
            shown(last, f"votes/recent/{name}"),
            remark,
        )
        for name, remark in _MEASURES
    ]


def answers(steps: Sequence[RunStep]) -> list[str]:
    """Answer the two questions by the numbers."""
    known = judged(steps)
    if not known:
        return []
    return [_above_one(known[-1]), _bounded(known)]


def _above_one(last: RunStep) -> str:
    name = "votes/recent/mu_within"
    question = "Is the reward model above mu = 1? "
    if name not in last.metrics:
        return (
            question
            + "Not known: no recent task had both a success and a failure that were judged."
        )
    low, high = last.metrics[f"{name}/low"], last.metrics[f"{name}/high"]
    word = "Yes" if low > 1.0 else "No, it lies below" if high < 1.0 else "Not shown"
    return f"{question}{word}: among rollouts of one task mu is {shown(last, name)} at the end."


def _bounded(known: Sequence[RunStep]) -> str:
    ratios = [s.metrics["theory/f_ratio"] for s in known if "theory/f_ratio" in s.metrics]
    sides = [s.metrics["theory/one_sided"] for s in known]
    early, late = sides[:_FEW], sides[-_FEW:]
    span = f"between {min(ratios):.2f} and {max(ratios):.2f}" if ratios else "not defined"
    missing = len(known) - len(ratios)
    alone = f" ({missing} steps had votes on one side only)" if missing else ""
    return (
        f"Did balancing keep the ratio bounded? f_plus / f_minus was {span} over the steps{alone}; tasks with one outcome "
        f"only, which teach one of the two terms: {_mean(early):.0%} of the groups in the first {len(early)} steps, "
        f"{_mean(late):.0%} in the last {len(late)}. Inside the band difficulty alone keeps the ratio within a factor of 2."
    )


def shown(step: RunStep, name: str) -> str:
    """Return a measure with its 95 % interval where there is one."""
    m = step.metrics
    if name not in m:
        return "-"
    if f"{name}/low" not in m or f"{name}/high" not in m:
        return f"{m[name]:.3f}"
    return f"{m[name]:.3f} [{m[f'{name}/low']:.2f}, {m[f'{name}/high']:.2f}]"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
