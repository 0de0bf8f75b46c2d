"""REST routes of trajectories: searched in the index that is committed with each step, read whole from the step's record.

The index (table `trajectories`) has one row per rollout, since filters, orders and totals go over all steps of a run; texts,
tokens and votes are in the record alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session
from tokenizers import Tokenizer

from services.trainer.runs.runs import Runs, RunsDep
from triforge.access.callers import Rule
from triforge.chat_template import decode, tokenizer_of
from triforge.config.base import Purpose
from triforge.errors import InputError, NotFoundError, TriforgeError
from triforge.store.step_records import SCHEMA, read_step_records
from triforge.store.tables import StepRow, TrajectoryRow
from triforge.store.training_logprobs import read_logprobs
from triforge.types import Page, TrajectoryPage, TrajectoryRecord, TrajectorySummary

SortKey = Literal[
    "step", "length", "tokens", "staleness", "vote", "advantage", "score",
    "-step", "-length", "-tokens", "-staleness", "-vote", "-advantage", "-score",
]  # fmt: skip
_NULL: Final = 1e300  # rows without a value are sorted last
_CURSOR: Final = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)/([0-9]{1,9})/([0-9]{1,9})")
IDS: Final = {"context_ids", "response_ids", "response_logprobs", "policy_versions", "judge_prompt_ids"}  # fmt: skip
OF_ALL: Final = {  # columns of the trajectory, not of one of its steps
    "run_id", "step", "purpose", "proposal_id", "group_id", "task_id", "task_slot", "trajectory_id", "instruction", "system",
    "outcome", "outcome_error", "score",
}  # fmt: skip

RULES: Final[Mapping[str, Rule]] = {
    f"GET /v1/runs/{{run_id}}/{path}": Rule(requires="read")
    for path in (
        "trajectories", "trajectories/{trajectory_id}", "groups/{group_id}",
    )
}  # fmt: skip
router = APIRouter(prefix="/{run_id}")


class TrajectoryFilter(BaseModel):
    """The filters and the order of a list of trajectories; fields that are left out select everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int | None = Field(None, ge=0, le=10**9)
    group: str = Field("", max_length=120)
    task: str = Field(
        "", max_length=64, description="Id of a version, or of a slot for all of its versions."
    )
    kind: str = Field("", max_length=64, description="The family's word for tasks of a sort.")
    purpose: Purpose | None = None
    outcome: Literal["success", "failure", "scored", "unmeasured"] | None = Field(
        None,
        description="`scored` has a score and no threshold, `unmeasured` failed by infrastructure.",
    )
    against: bool | None = Field(
        None, description="Whether the mean vote has another sign than the outcome."
    )
    trained: bool | None = Field(
        None, description="Whether the policy was trained on any of its steps."
    )
    truncated: bool | None = Field(
        None, description="Whether a response was cut at the token limit."
    )
    min_length: int | None = Field(None, ge=0, le=10**6, description="Steps.")
    max_length: int | None = Field(None, ge=0, le=10**6)
    min_staleness: int | None = Field(None, ge=0, le=10**6)
    search: str = Field(
        "", max_length=200,
        description="Part of the instruction, the actions or the error, in the first 1,000 characters of them.",
    )  # fmt: skip
    sort: SortKey = "-step"
    cursor: str = Field("", max_length=64)
    limit: int = Field(50, ge=1, le=1000)

    def conditions(self, run_id: str) -> list[ColumnElement[bool]]:
        """Return the conditions on a row of the index."""
        row, given = TrajectoryRow, [TrajectoryRow.run_id == run_id]
        equal = {
            row.step: self.step, row.group_id: self.group or None, row.kind: self.kind or None, row.purpose: self.purpose,
            row.against: self.against, row.truncated: self.truncated,
        }  # fmt: skip
        given += [column == value for column, value in equal.items() if value is not None]
        if self.task:
            given.append(or_(row.task_id == self.task, row.task_slot == self.task))
        if self.outcome is not None:
            given.append(_OUTCOMES[self.outcome])
        if self.trained is not None:
            given.append(row.advantage.is_not(None) == self.trained)
        if self.min_length is not None:
            given.append(row.length >= self.min_length)
        if self.max_length is not None:
            given.append(row.length <= self.max_length)
        if self.min_staleness is not None:
            given.append(row.staleness >= self.min_staleness)
        if self.search:
            given.append(row.words.contains(self.search.lower(), autoescape=True))
        return given


_OUTCOMES: Final[dict[str, ColumnElement[bool]]] = {
    "success": TrajectoryRow.outcome == 1,
    "failure": TrajectoryRow.outcome == -1,
    "scored": and_(TrajectoryRow.outcome.is_(None), TrajectoryRow.score.is_not(None)),
    "unmeasured": TrajectoryRow.score.is_(None),
}


@router.get("/trajectories")
def list_trajectories(
    run_id: str, runs: RunsDep, wanted: Annotated[TrajectoryFilter, Query()]
) -> TrajectoryPage:
    """List a run's rollouts in finished steps that meet the filters, a page at a time, with their number."""
    row, conditions = TrajectoryRow, wanted.conditions(run_id)
    name, down = wanted.sort.removeprefix("-"), wanted.sort.startswith("-")
    last = -_NULL if down else _NULL
    column = getattr(row, name)
    value = func.coalesce(column, last) if column.expression.nullable else column
    query = select(row).where(*conditions)
    if wanted.cursor:
        at, step, number = _place(wanted.cursor)
        behind = or_(row.step < step, and_(row.step == step, row.number > number))
        query = query.where(or_(value < at if down else value > at, and_(value == at, behind)))
    query = query.order_by(value.desc() if down else value.asc(), row.step.desc(), row.number.asc())
    with runs.store.read(run_id) as session:
        total = session.scalar(select(func.count()).select_from(row).where(*conditions)) or 0
        rows = session.scalars(query.limit(wanted.limit + 1)).all()
    shown, cursor = rows[: wanted.limit], None
    if len(rows) > wanted.limit:
        known = getattr(shown[-1], name)
        cursor = f"{last if known is None else known!r}/{shown[-1].step}/{shown[-1].number}"
    return TrajectoryPage(items=tuple(map(summary_of, shown)), next_cursor=cursor, total=total)


@router.get("/trajectories/{trajectory_id}")
def get_trajectory(run_id: str, trajectory_id: str, runs: RunsDep) -> TrajectoryRecord:
    """Return one rollout, with its steps, their tokens, and each vote on them."""
    with runs.store.read(run_id) as session:
        row = session.get(TrajectoryRow, trajectory_id)
        if row is None or row.run_id != run_id:
            raise _missing("trajectory", trajectory_id, run_id)
        uri = _record_uri(session, row)
    records = _read_group(runs, uri, row.group_id, SCHEMA.names).get(row.id, [])
    trained = read_logprobs(runs.artifacts, run_id, row.step, trajectory_id)
    folder = runs.store.run_state(run_id).get("paths", {}).get("policy", "")
    steps = [_with_texts(record, folder) for record in _with_logprobs(records, trained)]
    return _record(row, steps)


@router.get("/groups/{group_id}")
def get_group(run_id: str, group_id: str, runs: RunsDep) -> Page[TrajectoryRecord]:
    """Return the rollouts of one task that were compared with each other, without token ids."""
    query = select(TrajectoryRow).where(
        TrajectoryRow.group_id == group_id, TrajectoryRow.run_id == run_id
    )
    with runs.store.read(run_id) as session:
        rows = session.scalars(query.order_by(TrajectoryRow.number)).all()
        if not rows:
            raise _missing("group", group_id, run_id)
        uri = _record_uri(session, rows[0])
    columns = [name for name in SCHEMA.names if name not in IDS]
    records = _read_group(runs, uri, group_id, columns)
    for vote in (v for own in records.values() for record in own for v in record["votes"]):
        del vote["ids"], vote["logprobs"]
    items = tuple(_record(row, records.get(row.id, [])) for row in rows)
    return Page[TrajectoryRecord](items=items)


def _record_uri(session: Session, row: TrajectoryRow) -> str:
    artifacts = session.get_one(StepRow, (row.run_id, row.step)).artifacts
    return str(artifacts["evaluation" if row.purpose == "evaluate" else "step_record"])


def _read_group(
    runs: Runs, uri: str, group_id: str, columns: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the records of a group's rollouts."""
    records = read_step_records(runs.artifacts, uri, columns, [("group_id", "=", group_id)])
    return {name: [*own] for name, own in groupby(records, key=itemgetter("trajectory_id"))}


def _missing(kind: str, name: str, run_id: str) -> NotFoundError:
    return NotFoundError(f"{kind} {name!r}: run {run_id} has none of this id in a finished step")


def summary_of(row: TrajectoryRow) -> TrajectorySummary:
    """Return a row of the index as a message."""
    return TrajectorySummary(
        **{name: getattr(row, name) for name in TrajectorySummary.model_fields}
    )


def _record(row: TrajectoryRow, records: Sequence[dict[str, Any]]) -> TrajectoryRecord:
    return TrajectoryRecord(
        summary=summary_of(row),
        instruction=records[0]["instruction"] if records else row.instruction,
        steps=tuple({n: v for n, v in record.items() if n not in OF_ALL} for record in records),
    )


def _with_logprobs(
    records: Sequence[dict[str, Any]], trained: dict[int, dict[int, float]]
) -> Iterator[dict[str, Any]]:
    """Yield records with the log-probability of each response token at its training; None where it was not trained on."""
    ends: dict[int, int] = {}
    for record in records:
        segment = record["segment"]
        start = ends.get(segment, 0) + len(record["context_ids"])
        end = ends[segment] = start + len(record["response_ids"])
        if segment in trained:
            record["training_logprobs"] = [trained[segment].get(n) for n in range(start, end)]
        yield record


def _with_texts(record: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a record with the texts of its ids, if the tokenizer can be read."""
    try:
        tokenizer = _tokenizer(folder)
        context = decode(tokenizer, record["context_ids"], skip_special_tokens=False)
        tokens = [decode(tokenizer, [i], skip_special_tokens=False) for i in record["response_ids"]]
    except (OSError, UnicodeDecodeError, TriforgeError):
        return record
    return record | {"context": context, "tokens": tokens}


@lru_cache(maxsize=2)
def _tokenizer(folder: str) -> Tokenizer:
    return tokenizer_of((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))


def _place(cursor: str) -> tuple[float, int, int]:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InputError(f"cursor: given {cursor!r}, expected a next_cursor of this list")
    return float(match[1]), int(match[2]), int(match[3])
