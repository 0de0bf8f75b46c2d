"""The APIs of the trainer: runs over REST, their events as server-sent events. Routes that only read the store block."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from services.trainer.runs.rollback import RunRollback
from services.trainer.runs.runs import RunRequest, Runs
from services.trainer.runs.trajectory_store import TrajectoryFilter
from triforge.access.callers import Rule
from triforge.store.step_records import steps_csv, steps_jsonl, steps_parquet
from triforge.types import (
    Page,
    RunState,
    RunStep,
    Timeline,
    TrajectoryPage,
    TrajectoryRecord,
    WeightsRecord,
)
from triforge.web.description import answers, files

_READ = Rule(requires="read")
_SUBMIT = Rule(requires="submit")

RULES: Final[Mapping[str, Rule]] = {
    "GET /v1/runs": _READ,
    "POST /v1/runs": _SUBMIT,
    "GET /v1/runs/{run_id}": _READ,
    "GET /v1/runs/{run_id}/steps": _READ,
    "GET /v1/runs/{run_id}/steps/{step}/timeline": _READ,
    "GET /v1/runs/{run_id}/trajectories": _READ,
    "GET /v1/runs/{run_id}/trajectories/{trajectory_id}": _READ,
    "GET /v1/runs/{run_id}/groups/{group_id}": _READ,
    "GET /v1/runs/{run_id}/report": _READ,
    "GET /v1/runs/{run_id}/events": _READ,
    "GET /v1/runs/{run_id}/weights": _READ,
    "GET /v1/runs/{run_id}/export": _READ,
    "POST /v1/runs/{run_id}/stop": _SUBMIT,
    "POST /v1/runs/{run_id}/resume": _SUBMIT,
    "POST /v1/runs/{run_id}/rollback": Rule(requires="admin"),
}

router = APIRouter(prefix="/v1/runs", tags=["runs"])
_PARQUET, _LINES = "application/vnd.apache.parquet", "application/x-ndjson"
_CSV, _EVENTS = "text/csv", "text/event-stream"
_REPORTS: Final = {
    "parquet": (_PARQUET, steps_parquet),
    "jsonl": (_LINES, steps_jsonl),
    "csv": (_CSV, steps_csv),
}


def _runs(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


RunsDep = Annotated[Runs, Depends(_runs)]
EventId = r"^\d{1,19}(-\d{1,19})?$"


@router.post("", status_code=201, responses=answers(404, 409))
async def submit(
    body: RunRequest,
    runs: RunsDep,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> RunState:
    """Queue a run on a pool. The same Idempotency-Key returns the run it made the first time."""
    return await runs.submit(body, idempotency_key)


@router.get("")
def list_runs(
    runs: RunsDep,
    cursor: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Page[RunState]:
    """Runs, newest first, a page at a time."""
    return runs.store.runs(cursor=cursor, limit=limit)


@router.get("/{run_id}")
def get_run(run_id: str, runs: RunsDep) -> RunState:
    """One run."""
    return runs.store.get(run_id)


@router.get("/{run_id}/steps")
def list_steps(
    run_id: str,
    runs: RunsDep,
    after: Annotated[int, Query(ge=-1, le=10**9)] = -1,
    cursor: Annotated[str, Query(pattern=r"^\d{0,9}$")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    measures: Annotated[str, Query(max_length=8000)] = "",
) -> Page[RunStep]:
    """Finished steps after one, in order, a page at a time; step 0 is the evaluation before training. `measures` names those wanted, with commas; all if none."""
    wanted = [name for name in measures.split(",") if name]
    found = runs.store.steps(
        run_id, after=max(after, int(cursor or -1)), limit=limit + 1, measures=wanted
    )
    more = str(found[limit - 1].step) if len(found) > limit else None
    return Page[RunStep](items=tuple(found[:limit]), next_cursor=more)


@router.get("/{run_id}/steps/{step}/timeline")
def get_timeline(
    run_id: str, step: Annotated[int, Path(ge=0, le=10**9)], runs: RunsDep
) -> Timeline:
    """When each process worked on a training step."""
    return runs.trajectories.timeline(run_id, step)


@router.get("/{run_id}/trajectories")
def list_trajectories(
    run_id: str, runs: RunsDep, wanted: Annotated[TrajectoryFilter, Query()]
) -> TrajectoryPage:
    """A run's rollouts in finished steps, those that meet the filters, a page at a time, and how many they are."""
    return runs.trajectories.page(run_id, wanted)


@router.get("/{run_id}/trajectories/{trajectory_id}")
def get_trajectory(run_id: str, trajectory_id: str, runs: RunsDep) -> TrajectoryRecord:
    """One rollout, with its steps, their tokens, and each vote on them."""
    return runs.trajectories.one(run_id, trajectory_id)


@router.get("/{run_id}/groups/{group_id}")
def get_group(run_id: str, group_id: str, runs: RunsDep) -> Page[TrajectoryRecord]:
    """The rollouts of one task that were compared with each other, without token ids."""
    return Page[TrajectoryRecord](items=tuple(runs.trajectories.group(run_id, group_id)))


@router.get("/{run_id}/report", response_class=Response, responses=files(_LINES, _PARQUET, _CSV))
def report(
    run_id: str,
    runs: RunsDep,
    form: Annotated[Literal["parquet", "jsonl", "csv"], Query()] = "jsonl",
) -> Response:
    """All finished steps as one file: a row a step, a column (or a name) a measure."""
    media, write = _REPORTS[form]
    return Response(
        write(runs.store.steps(run_id)),
        media_type=media,
        headers={"content-disposition": f'attachment; filename="{run_id}-steps.{form}"'},
    )


@router.get("/{run_id}/events", response_class=StreamingResponse, responses=files(_EVENTS))
async def events(
    run_id: str,
    runs: RunsDep,
    after: Annotated[str, Query(pattern=EventId)] = "0",
    last_event_id: Annotated[str | None, Header(pattern=EventId)] = None,
) -> StreamingResponse:
    """Everything that happens to a run, as server-sent events, from the start or after an event id, until it has ended."""
    await runs.watchable(run_id)

    async def lines() -> AsyncIterator[str]:
        async for item in runs.events(run_id, last_event_id or after):
            if item is None:
                yield ": nothing new\n\n"
            else:
                entry, event = item
                yield f"id: {entry}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"

    return StreamingResponse(lines(), media_type=_EVENTS)


@router.post("/{run_id}/stop", status_code=202, responses=answers(409))
def stop(run_id: str, runs: RunsDep) -> RunState:
    """Ask a run to stop. What is unfinished is done again on resume."""
    return runs.store.request_stop(run_id)


@router.post("/{run_id}/resume", status_code=202, responses=answers(409))
def resume(run_id: str, runs: RunsDep) -> RunState:
    """Go on after the last finished step."""
    return runs.store.resume(run_id)


@router.get("/{run_id}/weights")
def weights(run_id: str, runs: RunsDep) -> Page[WeightsRecord]:
    """All weight versions of a run, which of them repeat an older one, and which are still on the disk."""
    return Page[WeightsRecord](items=tuple(runs.rollbacks.records(run_id)))


@router.post("/{run_id}/rollback", responses=answers(409))
async def rollback(run_id: str, body: RunRollback, runs: RunsDep) -> RunState:
    """Take a stopped run's model back to an older version; it serves, and is trained on, under the next number."""
    return await runs.rollbacks.roll_back(run_id, body)


@router.get(
    "/{run_id}/export", response_class=FileResponse, responses=files(_PARQUET) | answers(409)
)
async def export(
    run_id: str, runs: RunsDep, step: Annotated[int | None, Query(ge=0, le=10**9)] = None
) -> FileResponse:
    """The run's record, or that of one `step`, as one Parquet file, one row a step of a trajectory."""
    path = await runs.export(run_id, step)
    task = BackgroundTask(shutil.rmtree, path.parent, ignore_errors=True)
    return FileResponse(path, media_type=_PARQUET, filename=path.name, background=task)
