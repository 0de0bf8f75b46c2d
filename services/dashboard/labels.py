"""The page on which a person labels the steps of which the judge is least sure."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from services.dashboard.apis import Visitor, form_of, run_path
from services.dashboard.templates import page
from triforge.clients.transport import segment
from triforge.errors import InputError
from triforge.types import Page, RunState, UnsureStep

router = APIRouter(default_response_class=HTMLResponse)

_ROWS: Final = 10
_LABELS: Final = {"1": 1, "-1": -1}


@router.get("/runs/{run_id}/labels")
async def unsure(
    run_id: str,
    visit: Visitor,
    by: Annotated[str, Query(max_length=100)] = "",
    cursor: Annotated[str, Query(max_length=64)] = "",
) -> str:
    """Show steps without a label; `by` is the name of the person."""
    run, steps = await asyncio.gather(
        visit.read(RunState, "trainer", run_path(run_id)),
        visit.read(
            Page[UnsureStep], "trainer", run_path(run_id, "/unsure"), limit=_ROWS, cursor=cursor
        ),
    )
    more = urlencode({"by": by, "cursor": steps.next_cursor}) if steps.next_cursor else ""
    return page("labels", run=run, steps=steps.items, by=by, cursor=cursor, more=more)


@router.post("/labels")
async def label(request: Request, visit: Visitor) -> RedirectResponse:
    """Store the label of a form, and show the page again."""
    fields = await form_of(request)
    run, value, step = (fields.get(name, "") for name in ("run", "label", "step"))
    if not run or value not in _LABELS or not step.isdecimal():
        raise InputError(
            f"label: given {value[:20]!r} of step {step[:20]!r} of run {run[:80]!r}, expected {' or '.join(_LABELS)}"
        )
    by = fields.get("by", "")
    one = {"trajectory": fields.get("trajectory", ""), "step": int(step), "label": _LABELS[value], "by": by}  # fmt: skip
    path = run_path(run, "/labels")
    await visit.apis.call("POST", "trainer", path, visit.key, body={"labels": [one]})
    place = urlencode({"by": by, "cursor": fields.get("cursor", "")})
    return RedirectResponse(f"/runs/{segment(run)}/labels?{place}", status_code=303)
