"""`monte_carlo`: the mean outcome of an action in a place, less that of the place; no vote takes part."""

from __future__ import annotations

from collections.abc import Iterable

from triforge.algorithms.advantages import Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.judge_targets import Cell, Judged, PlaceOptions, filled, judge_target


@judge_target("monte_carlo", PlaceOptions)
def monte_carlo(judged: Judged, algorithm: CoreOptions, options: PlaceOptions) -> Rows:
    """Return the mean outcome of the trajectories that took this action at this place, less that of all that came there.

    A trajectory counts once for a place and once for an action there.
    """
    found = dict[Cell, float]()
    for cells in judged.places(options.target_place):
        here = _mean(judged, cells)
        taken: dict[str, list[Cell]] = {}
        for t, i in cells:
            taken.setdefault(judged.actions[t][i], []).append((t, i))
        for same in taken.values():
            found |= dict.fromkeys(same, _mean(judged, same) - here)
    return filled(judged, found)


def _mean(judged: Judged, cells: Iterable[Cell]) -> float:
    outcomes = [judged.outcomes[t] or 0 for t in {t for t, _ in cells}]
    return sum(outcomes) / len(outcomes)
