"""Pages of a pool, of a task with all its versions and of a rewrite, and the form by which people change them."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from services.dashboard.apis import Visit, Visitor, form_of
from services.dashboard.compare import differing
from services.dashboard.runs import ROWS
from services.dashboard.templates import page
from triforge.algorithms.theory import wilson
from triforge.clients.transport import segment
from triforge.errors import InputError
from triforge.types import (
    Lineage,
    Measurement,
    Page,
    PoolState,
    Proposal,
    ProposalDetail,
    ProposalState,
    Task,
    TaskDetail,
    TaskState,
    mean_score,
)

router = APIRouter(default_response_class=HTMLResponse)

Part = tuple[Literal["same", "gone", "new"], str]
Options = list[tuple[str, list[str]]]  # name of a parameter, its values before and after
Text = Annotated[str, Query(max_length=200)]

_API: Final = "env_adapter"
_DEEPEST: Final = 8  # indentations
_VERBS: Final = {"tasks": ("pause", "resume", "pin", "unpin", "rollback"), "proposals": ("approve", "reject")}  # fmt: skip


@router.get("/pools/{pool}")
async def pool_page(
    pool: str,
    visit: Visitor,
    search: Text = "", state: Text = "", rewrites: Text = "", cursor: str = "", after: str = "",
) -> str:  # fmt: skip
    """Show a pool with its tasks (`search`, `state`, `cursor`) and its rewrites (`rewrites` is a state, `after` a cursor)."""
    path = f"/v1/pools/{segment(pool)}"
    tasks = {"search": search, "state": state, "cursor": cursor}
    proposals = {"state": rewrites, "cursor": after}
    state_of_pool, own_tasks, own_proposals = await asyncio.gather(
        visit.read(PoolState, _API, path),
        visit.read(Page[Task], _API, f"{path}/tasks", limit=ROWS, **tasks),
        visit.read(Page[Proposal], _API, f"{path}/proposals", limit=ROWS, **proposals),
    )
    return page(
        "pool", pool=state_of_pool, tasks=own_tasks,
        proposals=await asyncio.gather(*(_rewritten(visit, one) for one in own_proposals.items)),
        later=own_proposals.next_cursor, filters=tasks, rewrite_filters=proposals, states=get_args(TaskState),
        rewrite_states=get_args(ProposalState),
    )  # fmt: skip


@router.get("/tasks/{task_id}")
async def lineage_page(task_id: str, visit: Visitor) -> str:
    """Show all versions of a task as a tree, with the measurements of each."""
    lineage = await visit.read(Lineage, _API, f"/v1/tasks/{segment(task_id)}/lineage")
    versions = {version.task.id: version for version in lineage.versions}
    depths = _depths(lineage.versions)
    shown = [
        {
            "version": version, "depth": depths[name], "changed": _changed(version, versions),
            "success": success(version.measurements), "trial": _trial(version),
        }
        for name, version in versions.items()
    ]  # fmt: skip
    active = versions.get(lineage.active_id or "")
    paused = [v.task for v in lineage.versions if v.task.state == "paused"]
    return page(
        "lineage", lineage=lineage, versions=shown, task_id=task_id,
        task=active.task if active else next(iter(paused), None),
        back={version.task.id for version in _ancestors(lineage.active_id, versions)},
    )  # fmt: skip


@router.get("/proposals/{proposal_id}")
async def proposal_page(proposal_id: str, visit: Visitor) -> str:
    """Show a rewrite with its diagnosis, prompt, answer, checks and measurements."""
    detail = await visit.read(ProposalDetail, _API, f"/v1/proposals/{segment(proposal_id)}")
    proposal, rows = detail.proposal, detail.measurements
    _, sentence, options = await _rewritten(visit, proposal)
    return page(
        "proposal", proposal=proposal, sentence=sentence, options=options,
        parent=success(row for row in rows if row.purpose == "measure_parent"),
        candidate=success(row for row in rows if row.purpose != "measure_parent"), measurements=rows,
    )  # fmt: skip


@router.post("/actions")
async def act(request: Request, visit: Visitor) -> RedirectResponse:
    """Change a task or decide on a rewrite, as a form of its page asks."""
    fields = await form_of(request)
    kind, name, verb = (fields.get(field, "") for field in ("kind", "id", "verb"))
    if not name or verb not in _VERBS.get(kind, ()):
        raise InputError(
            f"verb: given {kind[:20]!r} {verb[:20]!r} of {name[:80]!r}, expected {_VERBS}"
        )
    body = {"reason": fields.get("reason", "")}
    if verb == "rollback":
        body["to"] = fields.get("to", "")
    path = f"/v1/{kind}/{segment(name)}/{verb}"
    await visit.apis.call("POST", _API, path, visit.key, body=body)
    return RedirectResponse(f"/{kind}/{segment(name)}", status_code=303)


def success(measurements: Iterable[Measurement]) -> dict[str, Any]:
    """Return the successes of measured rollouts with the 95 % interval of their share, and their mean score."""
    rows = [*measurements]
    return _counted((row.successes, row.measured) for row in rows) | mean_score(rows)


def _counted(counts: Iterable[tuple[int, int]]) -> dict[str, Any]:
    pairs = [*counts]
    successes, measured = (sum(pair[n] for pair in pairs) for n in (0, 1))
    if not measured:
        return {"measured": 0, "scored": 0}
    low, high = wilson(successes, measured)
    share = {"share": successes / measured, "low": low, "high": high}
    return {"measured": measured, "scored": 0, "successes": successes} | share


def _trial(version: TaskDetail) -> list[tuple[str, dict[str, Any]]]:
    """Return both measurements of the rewrite that made a version."""
    made = version.made_by
    if made is None or not made.candidate_counts:
        return []
    return [("before", _counted(made.parent_counts)), ("after", _counted(made.candidate_counts))]


def _changed(version: TaskDetail, versions: Mapping[str, TaskDetail]) -> tuple[list[Part], Options]:
    """Return the differences of a version's instruction from its parent's, and if there are none those of the parameters."""
    old, new = versions.get(version.task.parent_id or "", version).task, version.task
    options = differing([old.params, new.params]) if old.instruction == new.instruction else []
    return differences(old.instruction, new.instruction), options


async def _rewritten(visit: Visit, proposal: Proposal) -> tuple[Proposal, list[Part], Options]:
    """Return a rewrite, the differences of its sentences, and if there are none those of the parameters."""
    before, after, candidate = (
        proposal.instruction_before,
        proposal.instruction_after,
        proposal.candidate_id,
    )
    options: Options = []
    if before == after and candidate and not proposal.null_control:
        lineage = await visit.read(Lineage, _API, f"/v1/tasks/{segment(candidate)}/lineage")
        versions = {version.task.id: version for version in lineage.versions}
        options = _changed(versions[candidate], versions)[1] if candidate in versions else []
    return proposal, differences(before, after or before), options


def _depths(versions: Iterable[TaskDetail]) -> dict[str, int]:
    """Return the indentation of each version: one deeper than its parent where that has several children."""
    rows, depths = [*versions], dict[str, int]()
    parents = [version.task.parent_id for version in rows]
    for version in rows:
        above = version.task.parent_id
        branch = above is not None and parents.count(above) > 1
        depths[version.task.id] = min(_DEEPEST, depths.get(above or "", 0) + branch)
    return depths


def _ancestors(active: str | None, versions: Mapping[str, TaskDetail]) -> Iterator[TaskDetail]:
    """Yield the versions that the active one came from; the task can be rolled back to each."""
    version = versions.get(active or "")
    while version is not None and (version := versions.get(version.task.parent_id or "")):
        yield version


def differences(before: str, after: str) -> list[Part]:
    """Compare two texts word by word: `same` and `gone` are `before`, `same` and `new` are `after`."""
    old, new = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    parts: list[Part] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(("same", "".join(old[a:b])))
            continue
        if b > a:
            parts.append(("gone", "".join(old[a:b])))
        if d > c:
            parts.append(("new", "".join(new[c:d])))
    return parts
