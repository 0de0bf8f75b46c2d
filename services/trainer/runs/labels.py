"""Labels of steps by people and other systems: their table, their REST routes, and the steps on which the judge is least sure.

A source has one label of a step: a later one replaces it. Where sources disagree, the majority decides, and the newest label if both
sides have as many.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Depends, Query
from sqlalchemy import func, select

from services.trainer.runs.runs import Runs, RunsDep
from services.trainer.runs.store import RunStore
from services.trainer.runs.trajectories import IDS, OF_ALL, summary_of
from triforge.access.callers import Rule
from triforge.errors import InputError
from triforge.store.step_records import SCHEMA, read_step_records
from triforge.store.tables import LabelRow, StepRow, TrajectoryRow
from triforge.types import LabelRecord, LabelRequest, Page, StepLabel, UnsureStep
from triforge.web.bodies import body_of, described

RULES: Final[Mapping[str, Rule]] = {
    "GET /v1/runs/{run_id}/labels": Rule(requires="read"),
    "POST /v1/runs/{run_id}/labels": Rule(requires="submit"),
    "GET /v1/runs/{run_id}/unsure": Rule(requires="read"),
}
router = APIRouter(prefix="/{run_id}")

Sign = Literal[-1, 1]
TAUGHT: Final = ("train", "measure_parent")  # purposes of rollouts whose labels train a judge
_VOTE: Final = 8  # tokens at the end of a text that are its vote
_FILES: Final = 20  # records that one request reads


class KnownLabel(NamedTuple):
    """The label of a step after all sources; `number` is that of the newest of them, `played` the training step of the rollout."""

    trajectory: str
    played: int
    step: int
    label: Sign
    number: int


def put(store: RunStore, run_id: str, labels: Sequence[StepLabel]) -> list[LabelRecord]:
    """Store labels; one that its source has given before keeps its place.

    Raises:
        InputError: a label is not of a step of a training rollout in a finished step of the run; nothing is stored.
    """
    newest = {(one.trajectory, one.step, one.by): one for one in labels}
    with store.write(run_id) as session:
        rows = select(TrajectoryRow.id, TrajectoryRow.length).where(
            TrajectoryRow.run_id == run_id,
            TrajectoryRow.id.in_({one.trajectory for one in labels}),
            TrajectoryRow.purpose.in_(TAUGHT),
        )
        _demand_known(labels, dict(session.execute(rows).all()), run_id)
        last = session.scalar(
            select(func.max(LabelRow.number)).where(LabelRow.run_id == run_id)
        ) or 0  # fmt: skip
        kept = []
        for key, one in newest.items():
            row = session.get(LabelRow, (run_id, *key))
            if row is None or row.label != one.label:
                last += 1
                fields = {"trajectory_id": one.trajectory, "step": one.step, "by": one.by}
                row = session.merge(
                    LabelRow(run_id=run_id, **fields, label=one.label, number=last, at=time.time())
                )
            kept.append(_record(row))
        return kept


def _demand_known(labels: Sequence[StepLabel], lengths: Mapping[str, int], run_id: str) -> None:
    for place, one in enumerate(labels):
        if one.trajectory not in lengths:
            raise InputError(
                f"labels[{place}].trajectory: given {one.trajectory!r}, expected a training rollout in a finished step of {run_id}"
            )
        if one.step >= lengths[one.trajectory]:
            raise InputError(
                f"labels[{place}].step: given {one.step}, expected 0 to {lengths[one.trajectory] - 1}, the steps of {one.trajectory}"
            )


def labels_after(store: RunStore, run_id: str, number: int) -> list[KnownLabel]:
    """Return the labels of all steps of each rollout that has a label after a number."""
    row = LabelRow
    changed = select(row.trajectory_id).where(row.run_id == run_id, row.number > number)
    query = (
        select(row, TrajectoryRow.step)
        .join(TrajectoryRow, TrajectoryRow.id == row.trajectory_id)
        .where(row.run_id == run_id, row.trajectory_id.in_(changed))
        .order_by(row.trajectory_id, row.step, row.number)
    )
    with store.read(run_id) as session:
        found = session.execute(query).all()
    steps = groupby(found, lambda pair: (pair[0].trajectory_id, pair[1], pair[0].step))
    return [
        KnownLabel(*place, *_decided([own for own, _ in pairs])) for place, pairs in steps
    ]  # fmt: skip


def _decided(rows: Sequence[LabelRow]) -> tuple[Sign, int]:
    """Return the label of a step after all sources, oldest label first, and the newest number."""
    last = rows[-1]
    return 1 if sum(row.label for row in rows) + last.label / 2 > 0 else -1, last.number


def _record(row: LabelRow) -> LabelRecord:
    return LabelRecord.model_validate(
        {"trajectory": row.trajectory_id, "step": row.step, "label": row.label, "by": row.by, "at": row.at}
    )  # fmt: skip


@router.post("/labels", openapi_extra=described(LabelRequest))
def add_labels(
    run_id: str, body: Annotated[LabelRequest, Depends(body_of(LabelRequest))], runs: RunsDep
) -> Page[LabelRecord]:
    """Store labels of steps of training rollouts, all or none; a label replaces the earlier one of its step by the same source."""
    return Page[LabelRecord](items=tuple(put(runs.store, run_id, body.labels)))


@router.get("/labels")
def list_labels(
    run_id: str,
    runs: RunsDep,
    cursor: Annotated[str, Query(pattern=r"^\d{0,9}$")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Page[LabelRecord]:
    """List the labels of a run, in the order in which they came, a page at a time."""
    row = LabelRow
    query = select(row).where(row.run_id == run_id, row.number > int(cursor or 0))
    with runs.store.read(run_id) as session:
        rows = session.scalars(query.order_by(row.number).limit(limit + 1)).all()
    more = str(rows[limit - 1].number) if len(rows) > limit else None
    return Page[LabelRecord](items=tuple(map(_record, rows[:limit])), next_cursor=more)


@router.get("/unsure")
def list_unsure(
    run_id: str,
    runs: RunsDep,
    cursor: Annotated[str, Query(pattern=r"^(\d{1,9}/\d{1,9})?$")] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Page[UnsureStep]:
    """List judged steps without a label, of the newest training step first, in each those first on which the judge is least sure."""
    newest, after = map(int, (cursor or f"{10**9}/0").split("/"))
    row = StepRow
    recorded = row.artifacts["step_record"].as_string()
    query = select(row.step, recorded).where(
        row.run_id == run_id, row.step <= newest, recorded.is_not(None)
    )
    with runs.store.read(run_id) as session:
        files = session.execute(query.order_by(row.step.desc()).limit(_FILES)).all()
    found = list[UnsureStep]()
    for step, uri in files:
        ranked = _unsure(runs, run_id, step, uri, after=after if step == newest else 0)
        for rank, one in ranked:
            found.append(one)
            if len(found) == limit:
                return Page[UnsureStep](items=tuple(found), next_cursor=f"{step}/{rank}")
    more = f"{files[-1][0] - 1}/0" if len(files) == _FILES else None
    return Page[UnsureStep](items=tuple(found), next_cursor=more)


def _unsure(
    runs: Runs, run_id: str, step: int, uri: str, *, after: int
) -> Iterator[tuple[int, UnsureStep]]:
    """Yield the steps without a label in the record of a training step behind the `after`-th, the least sure first, and their ranks."""
    row, label = TrajectoryRow, LabelRow
    of_step = select(row).where(row.run_id == run_id, row.step == step, row.purpose.in_(TAUGHT))
    known = select(label.trajectory_id, label.step).join(row, row.id == label.trajectory_id)
    with runs.store.read(run_id) as session:
        rows = {one.id: one for one in session.scalars(of_step)}
        labelled = {*session.execute(known.where(row.run_id == run_id, row.step == step))}
    columns = [name for name in SCHEMA.names if name not in IDS]
    records = read_step_records(runs.artifacts, uri, columns, [("purpose", "in", TAUGHT)])
    played = {name: [*own] for name, own in groupby(records, key=itemgetter("trajectory_id"))}
    judged = [
        (sureness(record["votes"]), name, place)
        for name, own in played.items()
        for place, record in enumerate(own)
        if record["votes"]
    ]
    for rank, (sure, name, place) in enumerate(sorted(judged, key=itemgetter(0)), start=1):
        own = played[name]
        if rank > after and name in rows and (name, own[place]["step_index"]) not in labelled:
            yield rank, UnsureStep(
                summary=summary_of(rows[name]), instruction=own[place]["instruction"], sureness=sure,
                before=tuple(record["action"] for record in own[:place]), step=_shown(own[place]),
            )  # fmt: skip


def _shown(record: Mapping[str, Any]) -> dict[str, Any]:
    votes = [{n: v for n, v in vote.items() if n not in ("ids", "logprobs")} for vote in record["votes"]]  # fmt: skip
    return {name: value for name, value in record.items() if name not in OF_ALL} | {"votes": votes}


def sureness(votes: Sequence[Mapping[str, Any]]) -> float:
    """Return how sure a judge is of a step by its votes on it, from 0 to 1; see `UnsureStep`. A vote that cannot be read counts 0."""
    if len(votes) == 1 and votes[0]["value"]:
        return abs(2.0 * math.exp(math.fsum(votes[0]["logprobs"][-_VOTE:])) - 1.0)
    values: list[int] = [vote["value"] for vote in votes]
    return abs(sum(values)) / len(values)
