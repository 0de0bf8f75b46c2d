"""Pages made of what the APIs answer."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from services.dashboard.alarms import READ, alarms
from services.dashboard.apis import Apis
from services.dashboard.charts import Chart, charts_of
from services.dashboard.compare import Compare
from services.dashboard.deployment import Deployments
from services.dashboard.drawing import pictures
from services.dashboard.lines import View
from services.dashboard.rollouts import Rollouts
from services.dashboard.tasks import Tasks
from services.dashboard.timeline import Timelines
from services.dashboard.trying import Trying
from triforge.clients.transport import segment
from triforge.types import (
    Page,
    PoolState,
    Proposal,
    ProposalState,
    RunState,
    RunStep,
    Task,
    TaskState,
    WeightsRecord,
)

PAGE = 50  # rows of a table
_MOST_STEPS = 10_000  # what the trainer gives at once
_NEWEST_STEPS = 20
SMOOTHING = (0.0, 0.6, 0.9, 0.98)
_NOTHING = 1e-12  # smaller numbers are rounding and shown as 0
TEMPLATES = Path(__file__).with_name("html")
TASK_STATES: tuple[str, ...] = get_args(TaskState)
REWRITE_STATES: tuple[str, ...] = get_args(ProposalState)
COLUMNS = (
    ("success", "success"), ("score", "score"), ("in band", "in_band"), ("rows trained on", "rows/policy"),
    ("judge bal.", "judge/balanced"), ("unreadable votes", "judge/invalid"), ("votes trained on", "votes/trained_share"),
    ("held out, sampled", "eval/sampled"), ("held out, greedy", "eval/greedy"), ("score, held out", "eval/sampled_score"),
    ("not measured", "infrastructure_failures"), ("play s", "seconds/play"), ("train s", "seconds/train"),
)  # fmt: skip


def drawn(charts: Sequence[Chart]) -> str:
    """What the page of a run reads of all that a step has measured."""
    shown = {name for chart in charts for name in chart.measures}
    return ",".join(sorted({name for _, name in COLUMNS} | {*READ} | shown))


def templates(*folders: Path) -> Environment:
    """The templates of these folders and of the dashboard, with their filters."""
    found = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,  # names, instructions and what models say are text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"when": _when, "number": _number, "share": _share, "signed": _signed}
    return found


class Pages:
    """All pages of the service."""

    def __init__(self, apis: Apis) -> None:
        self._apis = apis
        self._templates = templates()
        self.rollouts = Rollouts(apis, self._page)
        self.compare = Compare(apis, self._page)
        self.deployments = Deployments(apis, self._page)
        self.tasks = Tasks(apis, self._page)
        self.timelines = Timelines(apis, self._page)
        self.trying = Trying(apis, self._page)

    def _page(self, name: str, **values: Any) -> str:
        return self._templates.get_template(f"{name}.html").render(**values)

    def problem(self, status: int, detail: str) -> str:
        """The page shown for an error."""
        return self._page("problem", status=status, detail=detail)

    async def overview(self, key: str, older: str = "") -> str:
        """Services, runs (the newest, or those behind a cursor) and pools."""
        services, runs, pools = await asyncio.gather(
            self._apis.readiness(),
            self._apis.read(Page[RunState], "trainer", "/v1/runs", key, limit=PAGE, cursor=older),
            self._apis.read(Page[PoolState], "env_adapter", "/v1/pools", key, limit=PAGE),
        )
        return self._page(
            "overview",
            services=services,
            addresses=self._apis.addresses,
            runs=runs.items,
            older=runs.next_cursor,
            pools=pools.items,
            more_pools=pools.next_cursor is not None,
        )

    async def run(self, key: str, run_id: str, view: View) -> str:
        """A run."""
        path = f"/v1/runs/{segment(run_id)}"
        run = await self._apis.read(RunState, "trainer", path, key)
        charts = charts_of(run.further)
        given = {"limit": _MOST_STEPS, "measures": drawn(charts)}
        page, weights = await asyncio.gather(
            self._apis.read(Page[RunStep], "trainer", f"{path}/steps", key, **given),
            self._apis.read(Page[WeightsRecord], "trainer", f"{path}/weights", key),
        )
        steps = [*page.items]
        last = {"after": steps[-1].step - 1, "limit": 1} if steps else {"limit": 1}
        newest = await self._apis.read(Page[RunStep], "trainer", f"{path}/steps", key, **last)
        found = alarms(steps)
        return self._page(
            "run",
            run=run,
            alarms=found,
            view=view,
            bottom=view.bottom(steps),
            smoothing=SMOOTHING,
            live=run.status in ("queued", "running", "stopping"),
            pictures=pictures(charts, steps, view, found),
            columns=_columns(steps),
            steps=steps[: -_NEWEST_STEPS - 1 : -1],
            newest=newest.items,
            weights=sorted(weights.items, key=lambda row: (row.role, -row.version)),
        )

    async def measures(self, key: str, run_id: str) -> bytes:
        """All measures of a run's steps as CSV."""
        path = f"/v1/runs/{segment(run_id)}/report"
        return (await self._apis.fetch("trainer", path, key, form="csv")).content

    async def pool(
        self, key: str, pool: str, *, tasks: Mapping[str, str], rewrites: Mapping[str, str]
    ) -> str:
        """A pool with a page of its tasks and a page of its rewrites."""
        path, api = f"/v1/pools/{segment(pool)}", "env_adapter"
        found, page, proposals = await asyncio.gather(
            self._apis.read(PoolState, api, path, key),
            self._apis.read(Page[Task], api, f"{path}/tasks", key, limit=PAGE, **tasks),
            self._apis.read(Page[Proposal], api, f"{path}/proposals", key, limit=PAGE, **rewrites),
        )
        return self._page(
            "pool",
            pool=found,
            tasks=page,
            proposals=proposals,
            wanted=tasks,
            wanted_rewrites=rewrites,
            states=TASK_STATES,
            rewrite_states=REWRITE_STATES,
        )


def _columns(steps: list[RunStep]) -> list[tuple[str, str]]:
    """The measures that this run has."""
    return [(title, name) for title, name in COLUMNS if any(name in step.metrics for step in steps)]


def _when(seconds: float) -> str:
    """A time of the APIs, readable, UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "0" if abs(value) < _NOTHING else f"{value:.4g}"


def _signed(value: float) -> str:
    """A number whose sign can be read without its colour."""
    return "0" if abs(value) < _NOTHING else f"{value:+.3g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
