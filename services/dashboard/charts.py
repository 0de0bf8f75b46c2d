"""The charts of a run: which measures are drawn together, with their words in `html/charts.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.dashboard.templates import FOLDER

INTERVAL: Final = ("", "/low", "/high")  # a measure, and the ends of its interval


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a run. A measure that has its interval at `/low` and `/high` is drawn with it.

    Attributes:
        unit: of the vertical axis.
        series: the measure of a step, by the name of its line.
        about: an explanation for readers who meet the words here first.
        top: end of the axis; without it a round number above all values.
        mark: a value with a meaning of its own, drawn as a line.
        stacked: whether the lines are parts of a whole.
    """

    title: str
    unit: str
    series: Mapping[str, str]
    about: str = ""
    top: float | None = None
    mark: float | None = None
    stacked: bool = False

    @property
    def measures(self) -> list[str]:
        """The measures that the chart is drawn from."""
        return [key + end for key in self.series.values() for end in INTERVAL]


CHARTS: Final = tuple(
    Chart(**chart) for chart in tomllib.loads((FOLDER / "charts.toml").read_text())["charts"]
)


def charts_of(further: Iterable[str]) -> tuple[Chart, ...]:
    """Return the charts of a run that trains further models: a line of each wherever the policy has one."""
    return tuple(replace(chart, series=_with_further(chart.series, further)) for chart in CHARTS)


def _with_further(series: Mapping[str, str], further: Iterable[str]) -> dict[str, str]:
    of_policy = {name: key for name, key in series.items() if "policy/" in key}
    return dict(series) | {
        name.replace("policy", role): key.replace("policy/", f"{role}/")
        for role in further
        for name, key in of_policy.items()
    }
