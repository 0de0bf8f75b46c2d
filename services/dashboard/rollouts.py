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
from triforge.types import Page, RunState, TrajectoryPage, TrajectoryRecord

router = APIRouter(prefix="/runs/{run_id}", default_response_class=HTMLResponse)

Text = Annotated[str, Query(max_length=200)]
_TRAIN: Final = {"purpose": "train"}
_ODD: Final = {  # what the first page shows of training rollouts
    "votes against the outcome": {"against": "true"} | _TRAIN,
    "not measured": {"outcome": "unmeasured"} | _TRAIN,
    "truncated": {"truncated": "true"} | _TRAIN,
    "left out of training": {"trained": "false"} | _TRAIN,
    "oldest weights": {"min_staleness": "1", "sort": "-staleness"} | _TRAIN,
    "successes, rarest first": {"outcome": "success", "sort": "-advantage"} | _TRAIN,
    "failures, rarest first": {"outcome": "failure", "sort": "advantage"} | _TRAIN,
}
_VIEWS: Final = {"odd ones": {}, "training tasks": _TRAIN, "held-out tasks": {"purpose": "evaluate"}}  # fmt: skip
_FIELDS: Final = (
    "step", "task", "kind", "purpose", "outcome", "against", "trained", "truncated", "min_length", "max_length",
    "min_staleness", "search", "sort",
)  # fmt: skip
_COLOURS: Final = {
    "sampled": "surprise at sampling (-log-probability)", "training": "surprise at training", "ratio": "ratio",
    "mask": "trained on", "version": "version of the weights",
}  # fmt: skip
_SURPRISE: Final = (0.01, 0.1, 0.5, 1.0, 2.0, 4.0)  # a value above n of the bounds has the colour n
_BOUNDS: Final = {"sampled": _SURPRISE, "training": _SURPRISE, "ratio": (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)}  # fmt: skip
_ROWS: Final = 50
_SHOWN: Final = 3  # of each odd kind


@router.get("/rollouts")
async def table(run_id: str, request: Request, visit: Visitor) -> str:
    """Show the rollouts that meet the filters of the address, or without any the odd ones; empty and unknown filters are ignored."""
    query = request.query_params
    filters = {name: query[name] for name in _FIELDS if query.get(name, "").strip()}
    cursor = query.get("cursor", "") if filters else ""

    async def found(fields: Mapping[str, str], limit: int) -> TrajectoryPage:
        path = run_path(run_id, "/trajectories")
        return await visit.read(
            TrajectoryPage, "trainer", path, limit=limit, cursor=cursor, **fields
        )

    run = await visit.read(RunState, "trainer", run_path(run_id))
    # of another trainer's policy nothing is trained on
    kept = {name: f for name, f in _ODD.items() if not (run.by_trainer and "trained" in f)}
    rows, training, *odd = await asyncio.gather(
        found(filters or _TRAIN, _ROWS if filters else 1),
        found(filters | _TRAIN, 1),
        *(found(fields, _SHOWN) for fields in ({} if filters else kept).values()),
    )
    kinds = zip(kept.items(), odd, strict=False)
    sections = [(name, _link(fields), kind) for (name, fields), kind in kinds if kind.items]
    if filters:
        sections = [("", "", rows)]
    return page(
        "rollouts", run=run, sections=sections, total=rows.total, training=training.total,
        of_training=_link(filters | _TRAIN), filters=dict.fromkeys(_FIELDS, "") | filters,
        filtered=bool(filters), link=_link(filters),
        title=next((name for name, fields in (_ODD | _VIEWS).items() if fields == filters), "Rollouts" ),
        purposes=get_args(Purpose), views={name: _link(fields) for name, fields in _VIEWS.items()},
        scored=any(row.score not in (None, 0.0, 1.0) for _, _, kind in sections for row in kind.items ),
        more=_link(filters | {"cursor": rows.next_cursor}) if filters and rows.next_cursor else "",
    )  # fmt: skip


@router.get("/rollouts/{trajectory_id}")
async def rollout(run_id: str, trajectory_id: str, visit: Visitor) -> str:
    """Show one rollout turn by turn, with its votes."""
    run, record = await _read(visit, run_id, trajectory_id)
    group = await visit.read(
        TrajectoryPage, "trainer", run_path(run_id, "/trajectories"), group=record.summary.group_id, limit=1000
    )  # fmt: skip
    at = next((n for n, row in enumerate(group.items) if row.id == trajectory_id), 0)
    return page(
        "rollout", run=run, record=record, row=record.summary, number=at + 1, of=len(group.items),
        before=group.items[at - 1] if at else None, after=next(iter(group.items[at + 1 :]), None),
    )  # fmt: skip


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
        "tokens", run=run, row=record.summary, turns=turns, by=by, form=form, colours=_COLOURS,
        legend=_legend(by, versions), trained=any(token["training"] is not None for token in known),
    )  # fmt: skip


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
        "group", run=run, group=group_id, rows=[record.summary for record in rollouts],
        lines=[(n, [*zip(cells, parted[n], strict=True)]) for n, cells in enumerate(steps)],
        first=None if tree else first,
        instruction=max((record.instruction for record in rollouts), key=len, default=""), tree=tree,
    )  # fmt: skip


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
    if value is None:
        return 0
    if by == "mask":
        return 3 if value else 0
    if by == "version":
        return versions.index(value) % 6 + 1
    return sum((value if by == "ratio" else -value) > bound for bound in _BOUNDS[by])


def _legend(by: str, versions: Sequence[int]) -> list[tuple[int, str]]:
    """Return the meaning of each colour."""
    if by == "mask":
        return [(3, "trained on"), (0, "left out")]
    if by == "version":
        return [(n % 6 + 1, f"version {version}") for n, version in enumerate(versions)]
    above = [(n, f"above {bound:g}") for n, bound in enumerate(_BOUNDS[by], 1)]
    return [(0, f"at most {_BOUNDS[by][0]:g}"), *above]


def _link(fields: Mapping[str, str | None]) -> str:
    return f"?{urlencode(fields)}"
