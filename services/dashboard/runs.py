"""The first page, and the page of a run: its verdict, curves and cost; the rest is folded."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from services.dashboard.apis import Visitor, run_path
from services.dashboard.charts import Chart, alarms, charts_of
from services.dashboard.drawing import pictures
from services.dashboard.templates import page
from triforge.algorithms.alarms import LETTERS, READ, unmeasured
from triforge.types import ENDED, Page, PoolState, RunState, RunStep, WeightsRecord

router = APIRouter(default_response_class=HTMLResponse)

EventId = Annotated[str, Query(pattern=r"^\d{1,19}(-\d{1,19})?$")]
ROWS: Final = 50  # of a table
_MOST_STEPS: Final = 10_000  # the trainer's limit of one response
_NEWEST_STEPS: Final = 20
_SMOOTHING: Final = (0.0, 0.6, 0.9, 0.98)
_COLUMNS: Final = (
    ("success", "success"), ("score", "score"), ("inside the band", "in_band"), ("rows trained on", "rows/policy"),
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
    paths = (run_path(run.id) for run in runs.items)  # a run has its verdict there, not in the list
    judged = await asyncio.gather(*(visit.read(RunState, "trainer", path) for path in paths))
    return page(
        "overview", services=services, addresses=visit.apis.addresses, runs=judged, more=runs.next_cursor, pools=pools,
    )  # fmt: skip


@router.get("/runs/{run_id}")
async def run_page(
    run_id: str, visit: Visitor, smooth: Annotated[float, Query(ge=0.0, le=0.999)] = 0.0
) -> str:
    """Show a run."""
    run, path = await visit.read(RunState, "trainer", run_path(run_id)), "/steps"
    charts = charts_of(run.further)
    rows, weights = await asyncio.gather(
        visit.read(
            Page[RunStep], "trainer", run_path(run_id, path), limit=_MOST_STEPS, measures=_read(run, charts)
        ),
        visit.read(Page[WeightsRecord], "trainer", run_path(run_id, "/weights")),
    )  # fmt: skip
    steps = [*rows.items]
    last = {"after": steps[-1].step - 1} if steps else {}
    newest = await visit.read(Page[RunStep], "trainer", run_path(run_id, path), limit=1, **last)
    raised, lost = alarms(steps), Counter[str]()
    for step in steps:
        for below in ("failures/", "eval/failures/"):
            lost.update(unmeasured(step.metrics, below))
    drawings = pictures(charts, steps, smooth, raised)
    sections = {name: [*part] for name, part in groupby(drawings, lambda one: one.chart.section)}
    return page(
        "run", run=run, alarms=raised, letters=", ".join(" ".join(kind) for kind in LETTERS.items()), lost=lost,
        smooth=smooth, smoothing=_SMOOTHING, live=run.status not in ENDED,
        first=sections.pop("First", []), sections=sections, spent=_spent(run, steps),
        columns=[(t, name) for t, name in _COLUMNS if any(_is_known(run, name, s) for s in steps)],
        steps=steps[: -_NEWEST_STEPS - 1 : -1], newest=newest.items,
        weights=sorted(weights.items, key=lambda row: (row.role, -row.version)),
    )  # fmt: skip


def _is_known(run: RunState, name: str, step: RunStep) -> bool:
    return name in step.metrics and not (run.by_trainer and name == "rows/policy")


def _spending(run: RunState) -> dict[str, list[str]]:
    """Return the measures whose sum over all steps is what a run took."""
    seconds, tokens = ([f"{role}/{name}" for role in run.versions] for name in ("seconds", "tokens"))  # fmt: skip
    return {"learners": seconds, "episodes": ["trajectories"], "sampled": ["tokens"], "trained": tokens}  # fmt: skip


def _spent(run: RunState, steps: Sequence[RunStep]) -> dict[str, float]:
    """Return seconds of the clock and of learners, training episodes and tokens."""
    sums = {
        what: sum(step.metrics.get(name, 0.0) for step in steps for name in names)
        for what, names in _spending(run).items()
    }
    return sums | {"clock": steps[-1].at - run.created_at if steps else 0.0}


def _read(run: RunState, charts: Sequence[Chart]) -> str:
    """Return the names of the measures that the page shows."""
    drawn = {name for chart in charts for name in chart.measures}
    spent = {name for names in _spending(run).values() for name in names}
    return ",".join(sorted({name for _, name in _COLUMNS} | {*READ} | drawn | spent))


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
