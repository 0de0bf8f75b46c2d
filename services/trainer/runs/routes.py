"""REST routes of runs, and their events as server-sent events. Routes that only read the store block."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from services.trainer.runs import labels, trajectories
from services.trainer.runs.rollback import RunRollback, roll_back
from services.trainer.runs.runs import RunRequest, Runs, RunsDep
from services.trainer.runs.verdict import verdict_of
from triforge.access.callers import Rule
from triforge.broker import EVENTS_STREAM
from triforge.config import AdaptationSection
from triforge.errors import ConflictError, NotFoundError
from triforge.store.copies import copy_of
from triforge.store.step_records import export_step_records, steps_csv, steps_jsonl, steps_parquet
from triforge.types import ENDED, Event, Page, Proposal, RunState, RunStep, WeightsRecord
from triforge.web.bodies import body_of, described
from triforge.web.description import answers, files

_READ = Rule(requires="read")
_SUBMIT = Rule(requires="submit")

RULES: Final[Mapping[str, Rule]] = {
    "GET /v1/runs": _READ,
    "POST /v1/runs": _SUBMIT,
    "GET /v1/runs/{run_id}": _READ,
    "GET /v1/runs/{run_id}/steps": _READ,
    "GET /v1/runs/{run_id}/report": _READ,
    "GET /v1/runs/{run_id}/events": _READ,
    "GET /v1/runs/{run_id}/weights": _READ,
    "GET /v1/runs/{run_id}/export": _READ,
    "POST /v1/runs/{run_id}/stop": _SUBMIT,
    "POST /v1/runs/{run_id}/resume": _SUBMIT,
    "POST /v1/runs/{run_id}/rollback": Rule(requires="admin"),
    **labels.RULES,
    **trajectories.RULES,
}

router = APIRouter(prefix="/v1/runs", tags=["runs"])
router.include_router(labels.router)
router.include_router(trajectories.router)
_PARQUET, _LINES = "application/vnd.apache.parquet", "application/x-ndjson"
_CSV, _EVENTS = "text/csv", "text/event-stream"
_REPORTS: Final = {
    "parquet": (_PARQUET, steps_parquet),
    "jsonl": (_LINES, steps_jsonl),
    "csv": (_CSV, steps_csv),
}
_TEXTS: Final = {"diagnosis", "prompt", "answer", "checks"}  # of a proposal; no verdict reads them
EventId = r"^\d{1,19}(-\d{1,19})?$"


@router.post("", status_code=201, openapi_extra=described(RunRequest), responses=answers(404, 409))
async def submit(
    body: Annotated[RunRequest, Depends(body_of(RunRequest))],
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
    """List runs, newest first, a page at a time."""
    return runs.store.runs(cursor=cursor, limit=limit)


@router.get("/{run_id}")
def get_run(run_id: str, runs: RunsDep) -> RunState:
    """Return one run, with its verdict."""
    run, steps = runs.store.get(run_id), runs.store.milestones(run_id)
    return run.model_copy(update={"verdict": verdict_of(run, steps)})


@router.get("/{run_id}/steps")
def list_steps(
    run_id: str,
    runs: RunsDep,
    after: Annotated[int, Query(ge=-1, le=10**9)] = -1,
    cursor: Annotated[str, Query(pattern=r"^\d{0,9}$")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    measures: Annotated[str, Query(max_length=8000)] = "",
) -> Page[RunStep]:
    """List finished steps after one, in order, a page at a time; step 0 is the evaluation before training.

    `measures` names the measures to return, with commas; `failures/` stands for all below it, nothing for all measures.
    """
    wanted = [name for name in measures.split(",") if name]
    steps = runs.store.steps(
        run_id, after=max(after, int(cursor or -1)), limit=limit + 1, measures=wanted
    )
    more = str(steps[limit - 1].step) if len(steps) > limit else None
    return Page[RunStep](items=tuple(steps[:limit]), next_cursor=more)


@router.get("/{run_id}/report", response_class=Response, responses=files(_LINES, _PARQUET, _CSV))
def report(
    run_id: str,
    runs: RunsDep,
    form: Annotated[Literal["parquet", "jsonl", "csv"], Query()] = "jsonl",
) -> Response:
    """Return all finished steps as one file: a row a step, a column (or a name) a measure."""
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
    """Stream the events of a run as server-sent events, from the start or after an event id, until it has ended."""
    await asyncio.to_thread(runs.store.get, run_id)
    await runs.broker.ping()

    async def lines() -> AsyncIterator[str]:
        async for item in _events(runs, run_id, last_event_id or after):
            if item is None:
                yield ": nothing new\n\n"
            else:
                entry, event = item
                yield f"id: {entry}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"

    return StreamingResponse(lines(), media_type=_EVENTS)


async def _events(runs: Runs, run_id: str, after: str) -> AsyncIterator[tuple[str, Event] | None]:
    """Yield a run's events after an entry, then live, until the run has ended; None when nothing came for a while."""
    cursor = after
    while True:
        ended = (await asyncio.to_thread(runs.store.get, run_id)).status in ENDED
        newest = await runs.broker.last_id(EVENTS_STREAM)
        entries = await runs.broker.read_events(cursor, run_id=run_id, block_s=1.0)
        for entry, event in entries:
            cursor = entry
            yield entry, event
        if not entries:
            cursor = max(cursor, newest, key=_entry_order)
            if ended:
                return
            yield None


def _entry_order(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


@router.post("/{run_id}/stop", status_code=202, responses=answers(409))
def stop(run_id: str, runs: RunsDep) -> RunState:
    """Ask a run to stop. An unfinished step is repeated on resume."""
    return runs.store.request_stop(run_id)


@router.post("/{run_id}/resume", status_code=202, responses=answers(409))
def resume(run_id: str, runs: RunsDep) -> RunState:
    """Go on after the last finished step."""
    return runs.store.resume(run_id)


@router.get("/{run_id}/weights")
def weights(run_id: str, runs: RunsDep) -> Page[WeightsRecord]:
    """List all weight versions of a run, which of them repeat an older one, and which are still on the disk (or in memory)."""
    runs.store.get(run_id)
    items = list[WeightsRecord]()
    for one in runs.store.weights_of(run_id):
        copy = copy_of(runs.artifacts, Path(one.uri))
        uri = str(copy) if copy != Path(one.uri) and copy.is_dir() else one.uri
        items.append(one.model_copy(update={"uri": uri, "kept": Path(uri).is_dir()}))
    return Page[WeightsRecord](items=tuple(items))


@router.post("/{run_id}/rollback", responses=answers(409))
async def rollback(run_id: str, body: RunRollback, runs: RunsDep) -> RunState:
    """Take a stopped run's model back to an older version; it serves, and is trained on, under the next number."""
    return await roll_back(runs, run_id, body)


@router.get(
    "/{run_id}/export", response_class=FileResponse, responses=files(_PARQUET) | answers(409)
)
async def export(
    run_id: str, runs: RunsDep, step: Annotated[int | None, Query(ge=0, le=10**9)] = None
) -> FileResponse:
    """Return the run's record, or that of one `step`, as one Parquet file, one row a step of a trajectory.

    The run's proposals are in its metadata with their counts and verdicts, so it needs env_adapter if tasks change.
    """
    run = await asyncio.to_thread(runs.store.get, run_id)
    steps = [s for s in await asyncio.to_thread(runs.store.steps, run_id) if s.artifacts]
    if not steps:
        raise ConflictError(
            f"run {run_id} has no finished training step yet; there is nothing to export"
        )
    wanted = [one for one in steps if step in (None, one.step)]
    kinds = ("step_record", "evaluation")
    uris = [one.artifacts[kind] for one in wanted for kind in kinds if kind in one.artifacts]
    if not uris:
        raise NotFoundError(
            f"step: given {step}, expected a finished one of run {run_id}: {steps[0].step} to {steps[-1].step}"
        )
    proposals = list[Proposal]()
    if AdaptationSection.model_validate(run.config.get("adaptation", {})).adapts:
        proposals = await runs.pools.proposals(run.pool_id, run_id=run_id)
    texts = [proposal.model_dump(mode="json", exclude=_TEXTS) for proposal in proposals]
    folder = Path(tempfile.mkdtemp(prefix="triforge-export-", dir=runs.exports))
    path = folder / f"{run_id}.parquet"
    write = partial(export_step_records, runs.artifacts, uris, path, proposals=texts)
    try:
        await asyncio.to_thread(write)
    except BaseException:  # cancelled requests included: nothing else knows of the folder
        shutil.rmtree(folder, ignore_errors=True)
        raise
    cleanup = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(path, media_type=_PARQUET, filename=path.name, background=cleanup)
