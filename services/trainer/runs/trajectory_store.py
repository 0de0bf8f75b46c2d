"""The trajectories of a run: found by what they are like, and read whole from the record of their step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, and_, func, or_, select
from tokenizers import Tokenizer

from services.trainer.runs.store import RunStore
from triforge.chat_template import decode, tokenizer_of
from triforge.config.base import Purpose
from triforge.errors import InputError, NotFoundError, TriforgeError
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import SCHEMA, read_step_records
from triforge.store.tables import StepRow, TrajectoryRow
from triforge.store.timelines import read_timeline
from triforge.store.training_logprobs import read_logprobs
from triforge.types import Timeline, TrajectoryPage, TrajectoryRecord, TrajectorySummary

SortKey = Literal[
    "step", "length", "tokens", "staleness", "vote", "advantage", "score",
    "-step", "-length", "-tokens", "-staleness", "-vote", "-advantage", "-score",
]  # fmt: skip
_NULL: Final = 1e300  # what was not measured is sorted last
_CURSOR: Final = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)/([0-9]{1,9})/([0-9]{1,9})")
_IDS: Final = {"context_ids", "response_ids", "response_logprobs", "policy_versions", "judge_prompt_ids"}  # fmt: skip
_OF_ALL: Final = {  # of the trajectory, not of one of its steps
    "run_id", "step", "purpose", "proposal_id", "group_id", "task_id", "task_slot", "trajectory_id", "instruction",
    "outcome", "outcome_error", "score",
}  # fmt: skip


class TrajectoryFilter(BaseModel):
    """Which trajectories of a run, in which order. What is left out does not matter."""

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
        """What a row has to meet."""
        row = TrajectoryRow
        exact = {
            row.step: self.step, row.group_id: self.group or None, row.kind: self.kind or None, row.purpose: self.purpose,
            row.against: self.against, row.truncated: self.truncated,
        }  # fmt: skip
        found = [
            row.run_id == run_id,
            *(c == value for c, value in exact.items() if value is not None),
        ]
        if self.task:
            found.append(or_(row.task_id == self.task, row.task_slot == self.task))
        if self.outcome is not None:
            found.append(_OUTCOMES[self.outcome])
        if self.trained is not None:
            found.append(row.advantage.is_not(None) == self.trained)
        if self.min_length is not None:
            found.append(row.length >= self.min_length)
        if self.max_length is not None:
            found.append(row.length <= self.max_length)
        if self.min_staleness is not None:
            found.append(row.staleness >= self.min_staleness)
        if self.search:
            found.append(row.words.contains(self.search.lower(), autoescape=True))
        return found


_OUTCOMES: Final[dict[str, ColumnElement[bool]]] = {
    "success": TrajectoryRow.outcome == 1,
    "failure": TrajectoryRow.outcome == -1,
    "scored": and_(TrajectoryRow.outcome.is_(None), TrajectoryRow.score.is_not(None)),
    "unmeasured": TrajectoryRow.score.is_(None),
}


class Trajectories:
    """Reads what a run has played. Runs of others do not exist for the caller."""

    def __init__(self, runs: RunStore, artifacts: ArtifactStore) -> None:
        self._runs, self._artifacts = runs, artifacts

    def page(self, run_id: str, wanted: TrajectoryFilter) -> TrajectoryPage:
        """A page of what meets the filters, and how much does.

        Raises:
            NotFoundError: there is no such run.
            InputError: the cursor is none of ours.
        """
        self._runs.get(run_id)
        row, conditions = TrajectoryRow, wanted.conditions(run_id)
        name, down = wanted.sort.removeprefix("-"), wanted.sort.startswith("-")
        column = getattr(row, name)
        value = (
            func.coalesce(column, -_NULL if down else _NULL)
            if column.expression.nullable
            else column
        )
        order = (value.desc() if down else value.asc(), row.step.desc(), row.number.asc())
        query = select(row).where(*conditions)
        if wanted.cursor:
            at, step, number = _place(wanted.cursor)
            behind = or_(row.step < step, and_(row.step == step, row.number > number))
            query = query.where(or_(value < at if down else value > at, and_(value == at, behind)))
        with self._runs.read() as session:
            total = session.scalar(select(func.count()).select_from(row).where(*conditions)) or 0
            rows = session.scalars(query.order_by(*order).limit(wanted.limit + 1)).all()
        more, last = len(rows) > wanted.limit, rows[: wanted.limit][-1:]
        return TrajectoryPage(
            items=tuple(map(_shown, rows[: wanted.limit])),
            next_cursor=_cursor(last[0], name, down=down) if more else None,
            total=total,
        )

    def one(self, run_id: str, trajectory_id: str) -> TrajectoryRecord:
        """One trajectory with all its tokens; NotFoundError if the run has none of this id."""
        self._runs.get(run_id)
        with self._runs.read() as session:
            row = session.get(TrajectoryRow, trajectory_id)
        if row is None or row.run_id != run_id:
            raise NotFoundError(
                f"trajectory {trajectory_id!r}: run {run_id} has none of this id in a finished step"
            )
        records = [
            record
            for record in self._records(row, SCHEMA.names)
            if record["trajectory_id"] == trajectory_id
        ]
        folder = self._runs.run_state(run_id).get("paths", {}).get("policy", "")
        trained = read_logprobs(self._artifacts, run_id, row.step, trajectory_id)
        shown = [_with_texts(record, folder) for record in _with_logprobs(records, trained)]
        return _record(_shown(row), shown)

    def timeline(self, run_id: str, step: int) -> Timeline:
        """When each process worked on a step; NotFoundError if nothing is on record."""
        self._runs.get(run_id)
        return read_timeline(self._artifacts, run_id, step)

    def group(self, run_id: str, group_id: str) -> list[TrajectoryRecord]:
        """The rollouts of a group in order, without token ids; NotFoundError if the run has no such group."""
        self._runs.get(run_id)
        query = select(TrajectoryRow).where(
            TrajectoryRow.group_id == group_id, TrajectoryRow.run_id == run_id
        )
        with self._runs.read() as session:
            rows = session.scalars(query.order_by(TrajectoryRow.number)).all()
        if not rows:
            raise NotFoundError(
                f"group {group_id!r}: run {run_id} has none of this id in a finished step"
            )
        records = self._records(rows[0], [name for name in SCHEMA.names if name not in _IDS])
        for record in records:
            for vote in record["votes"]:
                for name in ("ids", "logprobs"):
                    vote.pop(name)
        of = {name: [*own] for name, own in groupby(records, key=itemgetter("trajectory_id"))}
        return [_record(_shown(row), of.get(row.id, [])) for row in rows]

    def _records(self, row: TrajectoryRow, columns: Sequence[str]) -> list[dict[str, Any]]:
        """What the record of its step has of a trajectory's group."""
        with self._runs.read() as session:
            step = session.get_one(StepRow, (row.run_id, row.step))
        uri = step.artifacts["evaluation" if row.purpose == "evaluate" else "step_record"]
        wanted = [("group_id", "=", row.group_id)]
        return read_step_records(self._artifacts, uri, columns, wanted)


def _shown(row: TrajectoryRow) -> TrajectorySummary:
    return TrajectorySummary(
        **{name: getattr(row, name) for name in TrajectorySummary.model_fields}
    )


def _record(summary: TrajectorySummary, records: list[dict[str, Any]]) -> TrajectoryRecord:
    return TrajectoryRecord(
        summary=summary,
        instruction=records[0]["instruction"] if records else summary.instruction,
        steps=tuple({n: v for n, v in record.items() if n not in _OF_ALL} for record in records),
    )


def _with_logprobs(
    records: Sequence[dict[str, Any]], trained: dict[int, dict[int, float]]
) -> Iterator[dict[str, Any]]:
    """Records with the log-probability of each response token when it was trained on; None of one that was not."""
    ends: dict[int, int] = {}
    for record in records:
        segment = record["segment"]
        start = ends.get(segment, 0) + len(record["context_ids"])
        at = ends[segment] = start + len(record["response_ids"])
        if segment not in trained:
            yield record
        else:
            yield record | {
                "training_logprobs": [trained[segment].get(n) for n in range(start, at)]
            }


def _with_texts(record: dict[str, Any], folder: str) -> dict[str, Any]:
    """A record with the texts of its ids, if the tokenizer can be read."""
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


def _cursor(row: TrajectoryRow, name: str, *, down: bool) -> str:
    value = getattr(row, name)
    return f"{(-_NULL if down else _NULL) if value is None else value!r}/{row.step}/{row.number}"


def _place(cursor: str) -> tuple[float, int, int]:
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InputError(f"cursor: given {cursor!r}, expected a next_cursor of ours")
    return float(found[1]), int(found[2]), int(found[3])
