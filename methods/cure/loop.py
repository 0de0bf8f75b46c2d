"""Hooks of the training loop: measures of programs and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from methods.cure.arithmetic import count_unit_tests, total
from methods.cure.written import accepted
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures
from triforge.types import JudgedGroup

_OF_POOL = ("train", "measure_parent")


class Cure(LoopHooks):
    """Measures the programs and tests of each step."""

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Measure programs and tests."""
        return unit_test_measures(groups)


def unit_test_measures(groups: Iterable[JudgedGroup]) -> dict[str, float]:
    """Return the quality of programs and generated tests, over the groups for which tests are written.

    `unit_tests/code`, `/ut` and `/detect` are the published shares (`methods.cure.arithmetic`); `/written` counts
    tests, `/invalid` is the share that could not be read, `/failed` counts groups whose tests were not written or not run;
    `/hidden` is the mean share of hidden tests that a program passes.
    """
    asked = [g for g in groups if g.played.group.purpose in _OF_POOL]
    if not asked:
        return {}
    counts = total(
        count_unit_tests([t.outcome.value for t in g.played.trajectories], accepted(g))
        for g in asked
    )
    rows = [row for g in asked for row in accepted(g)]
    shares = [t.outcome.passed for g in asked for t in g.played.trajectories]
    failed = sum(g.judgement is not None and g.judgement.error is not None for g in asked)
    measures = {"written": float(len(rows)), "failed": float(failed)}
    means: dict[str, list[float]] = {
        "invalid": [float(row is None) for row in rows],
        "hidden": [share for share in shares if share is not None],
    }
    measures |= {name: fmean(values) for name, values in means.items() if values}
    return {f"unit_tests/{name}": v for name, v in (counts.measures() | measures).items()}
