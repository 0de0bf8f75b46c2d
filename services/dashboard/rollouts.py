"""Pages of rollouts: a table with filters, one rollout turn by turn and token by token, a group side by side."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Final, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from services.dashboard.apis import Visit, Visitor, run_path
from services.dashboard.templates import page
from triforge.clients.transport import segment
from triforge.config.base import Purpose
from triforge.types import Page, RunState, TrajectoryPage, TrajectoryRecord, TrajectorySummary

router = APIRouter(prefix="/runs/{run_id}", default_response_class=HTMLResponse)

Text = Annotated[str, Query(max_length=200)]
_OUTCOMES: Final = {
    "success": "success", "failure": "failure", "scored": "a score only", "unmeasured": "not measured (infrastructure)",
}  # fmt: skip
_VIEWS: Final = {  # the usual questions
    "all": {},
    "votes against the outcome": {"against": "true"},
    "failed by infrastructure": {"outcome": "unmeasured"},
    "truncated": {"truncated": "true"},
    "left out of training": {"purpose": "train", "trained": "false"},
    "held-out tasks": {"purpose": "evaluate"},
}
_FIELDS: Final = (
    "step", "task", "kind", "purpose", "outcome", "against", "trained", "truncated", "min_length", "max_length",
    "min_staleness", "search", "sort",
)  # fmt: skip
_COLOURS: Final = {
    "sampled": "log-probability at sampling", "training": "log-probability at training", "ratio": "ratio",
    "mask": "trained on", "version": "version of the weights",
}  # fmt: skip
# bounds of the colours: from certain to surprising, from less likely than at sampling to more likely
_LOGPROBS: Final = (-0.01, -0.1, -0.5, -1.0, -2.0, -4.0)
_RATIOS: Final = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)
_ROWS: Final = 50


@router.get("/rollouts")
async def table(run_id: str, request: Request, visit: Visitor) -> str:
    """Show the rollouts that meet the filters of the address; empty and unknown filters are ignored."""
    query = request.query_params
    filters = {name: query[name] for name in _FIELDS if query.get(name, "").strip()}
    run, rows = await asyncio.gather(
        visit.read(RunState, "trainer", run_path(run_id)),
        visit.read(
            TrajectoryPage, "trainer", run_path(run_id, "/trajectories"), limit=_ROWS, cursor=query.get("cursor", ""), **filters
        ),
    )  # fmt: skip

    def sorted_by(name: str) -> str:
        return _link(filters | {"sort": name if filters.get("sort") == f"-{name}" else f"-{name}"})

    return page(
        "rollouts",
        run=run,
        page=rows,
        filters=dict.fromkeys(_FIELDS, "") | filters,
        filtered=bool(filters),
        link=_link(filters),
        outcomes=_OUTCOMES,
        purposes=get_args(Purpose),
        views={name: _link(fields) for name, fields in _VIEWS.items()},
        scored=any(_has_own_score(row) for row in rows.items),
        first_page="cursor" not in query,
        by=sorted_by,
        more=_link(filters | {"cursor": rows.next_cursor}) if rows.next_cursor else "",
    )


@router.get("/rollouts/{trajectory_id}")
async def rollout(run_id: str, trajectory_id: str, visit: Visitor) -> str:
    """Show one rollout turn by turn, with its votes."""
    run, record = await _read(visit, run_id, trajectory_id)
    group = await visit.read(
        TrajectoryPage, "trainer", run_path(run_id, "/trajectories"), group=record.summary.group_id, limit=1000
    )  # fmt: skip
    at = next((n for n, row in enumerate(group.items) if row.id == trajectory_id), 0)
    return page(
        "rollout",
        run=run,
        record=record,
        row=record.summary,
        number=at + 1,
        of=len(group.items),
        before=group.items[at - 1] if at else None,
        after=next(iter(group.items[at + 1 :]), None),
    )


@router.get("/rollouts/{trajectory_id}/tokens")
async def tokens(
    run_id: str, trajectory_id: str, visit: Visitor, by: Text = "", form: Text = ""
) -> str:
    """Show the sampled tokens of a rollout, coloured `by` one of their numbers, as a strip or a `table`."""
    run, record = await _read(visit, run_id, trajectory_id)
    by = by if by in _COLOURS else "sampled"
    turns = [(step, tokens_of(step)) for step in record.steps]
    known = [token for _, own in turns for token in own]
    versions = sorted({token["version"] for token in known})
    for token in known:
        token["level"] = _level(token, by, versions)
    return page(
        "tokens",
        run=run,
        row=record.summary,
        turns=turns,
        by=by,
        form=form,
        colours=_COLOURS,
        legend=_legend(by, versions),
        trained=any(token["training"] is not None for token in known),
    )


@router.get("/groups/{group_id}")
async def group(run_id: str, group_id: str, visit: Visitor) -> str:
    """Show the rollouts of a group in columns, step by step."""
    run, records = await asyncio.gather(
        visit.read(RunState, "trainer", run_path(run_id)),
        visit.read(
            Page[TrajectoryRecord], "trainer", run_path(run_id, f"/groups/{segment(group_id)}")
        ),
    )
    rollouts = records.items
    tree = any(step.get("state") for record in rollouts for step in record.steps)
    parted = parts([[step["action"] for step in record.steps] for record in rollouts])
    steps = zip_longest(*(record.steps for record in rollouts))
    first = next((n for n, marks in enumerate(parted) if any(marks)), None)
    return page(
        "group",
        run=run,
        group=group_id,
        rows=[record.summary for record in rollouts],
        lines=[(n, [*zip(cells, parted[n], strict=True)]) for n, cells in enumerate(steps)],
        first=None if tree else first,
        instruction=max((record.instruction for record in rollouts), key=len, default=""),
        tree=tree,
    )


async def _read(visit: Visit, run_id: str, trajectory_id: str) -> tuple[RunState, TrajectoryRecord]:
    path = run_path(run_id, f"/trajectories/{segment(trajectory_id)}")
    return await asyncio.gather(
        visit.read(RunState, "trainer", run_path(run_id)),
        visit.read(TrajectoryRecord, "trainer", path),
    )


def parts(actions: Sequence[Sequence[str]]) -> list[list[bool]]:
    """Return `[step][rollout]`: whether rollouts with the same actions before this step act differently here."""
    marks = []
    for n in range(max(map(len, actions), default=0)):
        ways: dict[tuple[str, ...], set[str]] = {}
        for own in actions:
            ways.setdefault(tuple(own[:n]), set()).update(own[n : n + 1])
        marks.append([n < len(own) and len(ways[tuple(own[:n])]) > 1 for own in actions])
    return marks


def tokens_of(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sampled tokens of a step with everything that is on record of each."""
    ids, texts = step["response_ids"], step.get("tokens") or []
    training = step.get("training_logprobs") or []
    columns = zip_longest(ids, texts, step["response_logprobs"], training, step["policy_versions"])
    weight = step["weight"] / len(ids) if ids else 0.0
    return [
        {
            "id": token, "text": f"[{token}]" if text is None else text.replace("\n", "↵\n"), "sampled": sampled, "training": trained,
            "ratio": None if trained is None else math.exp(max(-20.0, min(20.0, trained - sampled))),
            "mask": weight > 0.0, "weight": weight, "version": version,
        }
        for token, text, sampled, trained, version in columns
    ]  # fmt: skip


def _level(token: Mapping[str, Any], by: str, versions: Sequence[int]) -> int:
    """Return the colour of a token: 0 is none, 6 the strongest."""
    value = token[by]
    if by == "mask":
        return 3 if value else 0
    if value is None:
        return 0
    if by == "version":
        return versions.index(value) % 6 + 1
    if by == "ratio":
        return sum(value > bound for bound in _RATIOS)
    return sum(value < bound for bound in _LOGPROBS)


def _legend(by: str, versions: Sequence[int]) -> list[tuple[int, str]]:
    """Return the meaning of each colour."""
    if by == "mask":
        return [(3, "trained on"), (0, "left out")]
    if by == "version":
        return [(n % 6 + 1, f"version {version}") for n, version in enumerate(versions)]
    bounds, end, word = _LOGPROBS, "at least", "below"
    if by == "ratio":
        bounds, end, word = _RATIOS, "at most", "above"
    colours = ((n, f"{word} {bound:g}") for n, bound in enumerate(bounds, 1))
    return [(0, f"{end} {bounds[0]:g}"), *colours]


def _has_own_score(row: TrajectorySummary) -> bool:
    """Whether the score of a rollout adds to its success."""
    return row.score is not None and row.score != {1: 1.0, -1: 0.0}.get(row.outcome or 0)


def _link(fields: Mapping[str, str | None]) -> str:
    return f"?{urlencode(fields)}"
