"""The first page, and the page of a run: its state, curves, newest steps and weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from services.dashboard.apis import Visitor, run_path
from services.dashboard.charts import Chart, View, alarms, charts_of
from services.dashboard.drawing import pictures
from services.dashboard.templates import page
from triforge.algorithms.alarms import LETTERS, READ
from triforge.types import ENDED, Page, PoolState, RunState, RunStep, WeightsRecord

router = APIRouter(default_response_class=HTMLResponse)

EventId = Annotated[str, Query(pattern=r"^\d{1,19}(-\d{1,19})?$")]
ROWS: Final = 50  # of a table
_MOST_STEPS: Final = 10_000  # the trainer's limit of one response
_NEWEST_STEPS: Final = 20
_SMOOTHING: Final = (0.0, 0.6, 0.9, 0.98)
_COLUMNS: Final = (
    ("success", "success"), ("score", "score"), ("in band", "in_band"), ("rows trained on", "rows/policy"),
    ("judge bal.", "judge/balanced"), ("unreadable votes", "judge/invalid"), ("votes trained on", "votes/trained_share"),
    ("held out, sampled", "eval/sampled"), ("held out, greedy", "eval/greedy"), ("score, held out", "eval/sampled_score"),
    ("not measured", "infrastructure_failures"), ("play s", "seconds/play"), ("train s", "seconds/train"),
)  # fmt: skip


@router.get("/")
async def overview(visit: Visitor, older: Annotated[str, Query(max_length=200)] = "") -> str:
    """Show services, runs (`older` is a cursor) and pools."""
    services, runs, pools = await asyncio.gather(
        visit.apis.readiness(),
        visit.read(Page[RunState], "trainer", "/v1/runs", limit=ROWS, cursor=older),
        visit.read(Page[PoolState], "env_adapter", "/v1/pools", limit=ROWS),
    )
    addresses = visit.apis.addresses
    return page("overview", services=services, addresses=addresses, runs=runs, pools=pools)


@router.get("/runs/{run_id}")
async def run_page(
    run_id: str,
    visit: Visitor,
    x: Literal["step", "time"] = "step",
    smooth: Annotated[float, Query(ge=0.0, le=0.999)] = 0.0,
) -> str:
    """Show a run, with its curves over steps or time."""
    run = await visit.read(RunState, "trainer", run_path(run_id))
    view, charts, path = View(time=x == "time", smooth=smooth), charts_of(run.further), "/steps"
    rows, weights = await asyncio.gather(
        visit.read(
            Page[RunStep], "trainer", run_path(run_id, path), limit=_MOST_STEPS, measures=_read(charts)
        ),
        visit.read(Page[WeightsRecord], "trainer", run_path(run_id, "/weights")),
    )  # fmt: skip
    steps = [*rows.items]
    last = {"after": steps[-1].step - 1} if steps else {}
    newest = await visit.read(Page[RunStep], "trainer", run_path(run_id, path), limit=1, **last)
    raised = alarms(steps)
    return page(
        "run",
        run=run,
        alarms=raised,
        letters=", ".join(" ".join(kind) for kind in LETTERS.items()),
        view=view,
        bottom=view.bottom(steps),
        smoothing=_SMOOTHING,
        live=run.status not in ENDED,
        pictures=pictures(charts, steps, view, raised),
        columns=[(t, name) for t, name in _COLUMNS if any(name in s.metrics for s in steps)],
        steps=steps[: -_NEWEST_STEPS - 1 : -1],
        newest=newest.items,
        weights=sorted(weights.items, key=lambda row: (row.role, -row.version)),
    )


def _read(charts: Sequence[Chart]) -> str:
    """Return the names of the measures that the page shows."""
    drawn = {name for chart in charts for name in chart.measures}
    return ",".join(sorted({name for _, name in _COLUMNS} | {*READ} | drawn))


@router.get("/runs/{run_id}/steps.csv", response_class=Response)
async def measures(run_id: str, visit: Visitor) -> Response:
    """Send all measures of a run: a row a finished step, a column a measure."""
    path = run_path(run_id, "/report")
    reply = await visit.apis.call("GET", "trainer", path, visit.key, params={"form": "csv"})
    return Response(reply.content, media_type="text/csv")


@router.get("/runs/{run_id}/events", response_class=StreamingResponse)
async def events(
    run_id: str,
    visit: Visitor,
    after: EventId | None = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,19}(-\d{1,19})?$")] = None,
) -> StreamingResponse:
    """Forward the events of a run from now on, or after an event."""
    since = last_event_id or after or f"{int(time.time() * 1000)}-0"
    stream = visit.apis.events(visit.key, run_id, since)
    return StreamingResponse(stream, media_type="text/event-stream")
