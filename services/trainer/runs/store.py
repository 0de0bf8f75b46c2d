"""Runs, their steps and their weight versions in the database. One transaction moves a run by one step."""

from __future__ import annotations

import copy
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Self

from pydantic import ValidationError
from sqlalchemy import func, insert, select, tuple_
from sqlalchemy.orm import Session

from triforge.access.callers import DEFAULT, caller, own
from triforge.access.keys import hold_tenant
from triforge.config import AlgorithmSection
from triforge.errors import ConfigError, ConflictError, InputError, NotFoundError
from triforge.store.database import Database
from triforge.store.tables import (
    MeasurementRow,
    NoteRow,
    RunRow,
    StepRow,
    TrajectoryRow,
    WeightsRow,
)
from triforge.types import (
    ENDED,
    Page,
    RunState,
    RunStatus,
    RunStep,
    TaskOutcome,
    TrainedRole,
    WeightsRecord,
)

_AT_ONCE: Final = 100  # steps that are held with all their measures
ORCHESTRATOR: Final = (
    "orchestrator"  # the note that holds the token of the orchestrator that took the run last
)


class Superseded(Exception):  # noqa: N818 (a signal, not a failure)
    """A signal to an orchestrator that another one has taken its run."""


class RunStore:
    """Synchronous access to the run tables; every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._holder = ""

    @contextmanager
    def read(self, run_id: str) -> Iterator[Session]:
        """Open a transaction that reads rows of a run; NotFoundError if there is none that the caller may see."""
        with self._db.read() as session:
            _row_of(session, run_id)
            yield session

    @contextmanager
    def write(self, run_id: str) -> Iterator[Session]:
        """Open a transaction that writes rows of a run, one at a time; NotFoundError like `read`."""
        with self._db.write() as session:
            _hold(session, run_id)
            yield session

    def held_by(self, token: str) -> Self:
        """Return this store for one orchestrator: once another one has taken a run, its status and all writes raise `Superseded`.

        The holder is checked in the transaction of the write, so an orchestrator that was suspended and still believes in its
        lease can do no harm here.
        """
        held = copy.copy(self)
        held._holder = token
        return held

    def create(
        self,
        *,
        name: str,
        pool_id: str,
        config: dict[str, Any],
        idempotency_key: str | None = None,
        tenant: str = DEFAULT,
    ) -> RunState:
        """Queue a run. The same idempotency key of a tenant returns the run it made the first time.

        Raises:
            ConflictError: the key was used for another run.
        """
        now = time.time()
        with self._db.write() as session:
            tenant_row = hold_tenant(session, tenant)  # two requests with one key take turns
            repeated = _repeated(session, tenant_row.name, idempotency_key, pool_id, config)
            if repeated is not None:
                return _shown(repeated)
            row = RunRow(
                id=f"run-{uuid.uuid4().hex[:10]}",
                name=name,
                pool_id=pool_id,
                status="queued",
                step=-1,
                policy_version=0,
                reward_version=0,
                further={},
                config=config,
                state={},
                reason="",
                tenant=tenant,
                idempotency_key=idempotency_key,
                created_at=now,
                updated_at=now,
            )
            session.add(row)
        return _shown(row)

    def get(self, run_id: str) -> RunState:
        """Return a run."""
        with self._db.read() as session:
            return _shown(_row_of(session, run_id))

    def runs(self, *, cursor: str = "", limit: int = 100) -> Page[RunState]:
        """Return runs, newest first, after the run `cursor`; InputError if the caller may not see that."""
        with self._db.read() as session:
            query = select(RunRow).where(*own(RunRow.tenant))
            if cursor:
                last = session.get(RunRow, cursor)
                if last is None or not caller().sees(last.tenant):
                    raise InputError(
                        f"cursor: given {cursor!r}, expected a next_cursor of this list"
                    )
                place = tuple_(RunRow.created_at, RunRow.id)
                query = query.where(place < (last.created_at, last.id))
            newest = query.order_by(RunRow.created_at.desc(), RunRow.id.desc())
            rows = session.scalars(newest.limit(limit + 1)).all()
            more = rows[limit - 1].id if len(rows) > limit else None
            return Page[RunState](items=tuple(map(_shown, rows[:limit])), next_cursor=more)

    def count_by_status(self) -> dict[str, int]:
        """Return the number of runs in each status."""
        with self._db.read() as session:
            rows = session.execute(select(RunRow.status, func.count()).group_by(RunRow.status))
            return {row[0]: row[1] for row in rows}

    def next_runnable(self) -> RunState | None:
        """Return the run to work on: one that was running when the process ended, else the oldest queued one."""
        with self._db.read() as session:
            for status in ("running", "stopping", "queued"):
                query = select(RunRow).where(RunRow.status == status).order_by(RunRow.created_at)
                row = session.scalars(query).first()
                if row is not None:
                    return _shown(row)
        return None

    def status(self, run_id: str) -> RunStatus:
        """Return the run's status now."""
        with self._db.read() as session:
            return self._guard(_row_of(session, run_id)).status  # type: ignore[return-value]

    def take(self, run_id: str) -> RunState:
        """Begin a queued run and make this orchestrator its holder; a run that was asked to stop meanwhile keeps its status."""
        with self._db.write() as session:
            row = _hold(session, run_id)
            if row.status == "queued":
                row.status, row.updated_at = "running", time.time()
            if self._holder and row.status not in ENDED:
                row.state = {**row.state, ORCHESTRATOR: self._holder}
            return _shown(row)

    def set_reason(self, run_id: str, reason: str) -> None:
        """Record the reason why a run waits; the next finished step clears it."""
        with self._db.write() as session:
            self._guard(_hold(session, run_id)).reason = reason

    def set_status(self, run_id: str, status: RunStatus, reason: str = "") -> None:
        """Set the status of a run."""
        with self._db.write() as session:
            row = self._guard(_hold(session, run_id))
            row.status, row.reason, row.updated_at = status, reason, time.time()

    def request_stop(self, run_id: str) -> RunState:
        """Ask a run to stop. Stopping twice is the same as once."""
        with self._db.write() as session:
            row = _hold(session, run_id)
            if row.status in ENDED:
                raise ConflictError(
                    f"run {run_id} is {row.status}; only a queued or running run can be stopped"
                )
            row.status = "stopped" if row.status == "queued" else "stopping"
            row.updated_at = time.time()
            return _shown(row)

    def resume(self, run_id: str) -> RunState:
        """Queue a stopped or failed run again; it goes on after its last finished step."""
        with self._db.write() as session:
            row = _hold(session, run_id)
            if row.status not in ("stopped", "failed"):
                raise ConflictError(
                    f"run {run_id} is {row.status}; only a stopped or failed run can be resumed"
                )
            row.status, row.reason, row.updated_at = "queued", "", time.time()
            return _shown(row)

    def begin(
        self, run_id: str, *, state: dict[str, Any], versions: Mapping[TrainedRole, int]
    ) -> None:
        """Record the versions of a run outside of a step: its base, or new numbers for the same weights."""
        with self._db.write() as session:
            row = self._guard(_hold(session, run_id))
            row.state = _noted(row, state)
            _stand(row, versions)

    def run_state(self, run_id: str) -> dict[str, Any]:
        """Return the orchestrator's notes on the run (initial folders, base versions)."""
        with self._db.read() as session:
            notes = _row_of(session, run_id).state
            return {name: value for name, value in notes.items() if name != ORCHESTRATOR}

    def note(self, run_id: str, name: str, value: Any) -> None:
        """Write one of the orchestrator's notes; the others stay."""
        with self._db.write() as session:
            row = self._guard(_hold(session, run_id))
            row.state = {**row.state, name: value}

    def commit_step(
        self,
        step: RunStep,
        state: dict[str, Any] | None = None,
        reason: str = "",
        lines: Sequence[dict[str, Any]] = (),
    ) -> bool:
        """Write a finished step and move the run to it, in one transaction; return False if it was written before.

        `state` replaces the orchestrator's notes, `reason` the run's; `lines` are the index of its trajectories.
        """
        with self._db.write() as session:
            row = self._guard(_hold(session, step.run_id))
            if session.get(StepRow, (step.run_id, step.step)) is not None:
                return False
            row.step, row.updated_at, row.reason = step.step, step.at, reason
            _stand(row, step.versions)
            row.state = row.state if state is None else _noted(row, state)
            session.add(StepRow(**{name: getattr(step, name) for name in RunStep.model_fields}))
            if lines:
                numbered = [{**line, "number": number} for number, line in enumerate(lines)]
                session.execute(insert(TrajectoryRow), numbered)
            return True

    def measure(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Write the outcomes of groups that no adapt worker counts, each once."""
        columns = set(MeasurementRow.__table__.columns.keys())
        with self._db.write() as session:
            for outcome in outcomes:
                if session.get(MeasurementRow, outcome.group_id) is None:
                    session.add(MeasurementRow(**outcome.model_dump(include=columns)))

    def controller_notes(self, run_id: str, method: str) -> dict[str, dict[str, Any]]:
        """Return the notes of a method's controller on a run, by key."""
        query = select(NoteRow).where(NoteRow.method == method, NoteRow.subject == run_id)
        with self._db.read() as session:
            return {row.key: row.value for row in session.scalars(query.order_by(NoteRow.key))}

    def steps(
        self,
        run_id: str,
        *,
        after: int = -1,
        limit: int | None = None,
        measures: Sequence[str] = (),
    ) -> list[RunStep]:
        """Return finished steps after one, in order; with these measures alone, if any are named (`name/`: all below it)."""
        columns = (getattr(StepRow, name) for name in RunStep.model_fields)
        query = select(*columns).where(StepRow.run_id == run_id, StepRow.step > after)
        query = query.order_by(StepRow.step).limit(limit).execution_options(yield_per=_AT_ONCE)
        steps = []
        with self.read(run_id) as session:
            for row in session.execute(query).mappings():
                own = row["metrics"]
                below = tuple(name for name in measures if name.endswith("/"))
                kept = {n: v for n, v in own.items() if not measures or n in measures or n.startswith(below)}  # fmt: skip
                steps.append(RunStep(**{**row, "metrics": kept}))
        return steps

    def milestones(self, run_id: str) -> list[RunStep]:
        """Return the first finished step, the newest one with an evaluation and the newest one, each once, in order."""
        row = StepRow
        of_run = row.run_id == run_id
        played = row.artifacts["evaluation"].as_string().is_not(None)
        ends = (func.min(row.step), func.max(row.step))
        with self.read(run_id) as session:
            first, last = session.execute(select(*ends).where(of_run)).one()
            evaluated = session.scalar(select(ends[1]).where(of_run, played))
            wanted = row.step.in_({first, evaluated, last} - {None})
            columns = (getattr(row, name) for name in RunStep.model_fields)
            rows = session.execute(select(*columns).where(of_run, wanted).order_by(row.step))
            return [RunStep(**found) for found in rows.mappings()]

    def evaluated(self, run_id: str, step: int) -> list[dict[str, Any]]:
        """Return group, task, outcome and score of each held-out episode of a finished step."""
        row = TrajectoryRow
        query = select(row.group_id, row.task_id, row.outcome, row.score).where(
            row.run_id == run_id, row.step == step, row.purpose == "evaluate"
        )
        with self.read(run_id) as session:
            return [dict(found) for found in session.execute(query).mappings()]

    # ---- weights ----

    def add_weights(
        self, run_id: str, role: TrainedRole, version: int, uri: str, digest: str, **origin: int
    ) -> None:
        """Record the folder of a version, and the version that it repeats (`origin`). Twice is the same as once."""
        with self._db.write() as session:
            self._guard(_hold(session, run_id))
            _add_weights(session, run_id, role, version, uri, digest, **origin)

    def find_weights(self, run_id: str, role: TrainedRole, version: int) -> tuple[str, str] | None:
        """Return (uri, digest) of a recorded version, or None."""
        with self._db.read() as session:
            row = session.get(WeightsRow, (run_id, role, version))
            return None if row is None else (row.uri, row.digest)

    def weights_of(self, run_id: str, role: TrainedRole | None = None) -> list[WeightsRecord]:
        """Return all recorded versions of a run, oldest first a role; `kept` is always False."""
        query = select(WeightsRow).where(WeightsRow.run_id == run_id)
        if role is not None:
            query = query.where(WeightsRow.role == role)
        with self._db.read() as session:
            rows = session.scalars(query.order_by(WeightsRow.role, WeightsRow.version))
            names = WeightsRecord.model_fields.keys() - {"kept"}
            return [
                WeightsRecord(**{name: getattr(row, name) for name in names}, kept=False)
                for row in rows
            ]

    def newest_weights(self, run_id: str, role: TrainedRole) -> int:
        """Return the newest recorded version of a role, committed or not; -1 if there is none."""
        return max((row.version for row in self.weights_of(run_id, role)), default=-1)

    def roll_back(
        self,
        run_id: str,
        role: TrainedRole,
        *,
        origin: int,
        new: int,
        uri: str,
        digest: str,
        notes: Mapping[str, Any],
    ) -> None:
        """Set a run's model to version `new`, which repeats `origin`, and change these of its notes.

        Raises:
            ConflictError: the run is queued or running.
        """
        with self._db.write() as session:
            row = _hold(session, run_id)
            if row.status not in ENDED:
                raise ConflictError(
                    f"run {row.id} is {row.status}, expected a stopped, failed or finished run: stop it first"
                )
            _add_weights(session, run_id, role, new, uri, digest, origin=origin)
            row.state = {**row.state, **notes}
            _stand(row, {role: new})
            row.updated_at = time.time()

    def undo_rollback(
        self, run: RunState, role: TrainedRole, new: int, notes: Mapping[str, Any]
    ) -> None:
        """Set a run's model and notes to those before `roll_back` to `new`."""
        with self._db.write() as session:
            row = _hold(session, run.id)
            recorded = session.get(WeightsRow, (run.id, role, new))
            if recorded is not None:
                session.delete(recorded)
            row.state = {**row.state, **notes}
            _stand(row, {role: run.versions[role]})

    def _guard(self, row: RunRow) -> RunRow:
        if self._holder and row.state.get(ORCHESTRATOR) != self._holder:
            raise Superseded(row.id)
        return row


def _hold(session: Session, run_id: str) -> RunRow:
    """Return the run, locked until the end of the transaction; SQLite's writers take turns anyway."""
    return _row_of(session, run_id, hold=True)


def _row_of(session: Session, run_id: str, *, hold: bool = False) -> RunRow:
    """Return the run; NotFoundError if there is none that the caller may see."""
    row = session.get(RunRow, run_id, with_for_update=hold or None)
    if row is None or not caller().sees(row.tenant):
        raise NotFoundError(f"run {run_id!r} does not exist; `triforge run list` lists all")
    return row


def _stand(row: RunRow, versions: Mapping[TrainedRole, int]) -> None:
    """Set the versions of a run's models; the others keep theirs."""
    row.policy_version = versions.get("policy", row.policy_version)
    row.reward_version = versions.get("reward", row.reward_version)
    named = {role: v for role, v in versions.items() if role not in ("policy", "reward")}
    row.further = {**row.further, **named}


def _shown(row: RunRow) -> RunState:
    shown = RunState.model_fields.keys() - {"steps", "algorithm", "verdict"}
    return RunState(
        steps=int(row.config.get("run", {}).get("steps", 0)),
        algorithm=_algorithm(json.dumps(row.config.get("algorithm", {}))),
        **{name: getattr(row, name) for name in shown},
    )


@lru_cache
def _algorithm(section: str) -> str:
    """Return a run's algorithm in a line; empty for one that this version of triforge does not know."""
    try:
        return AlgorithmSection.model_validate_json(section).resolved.described
    except (ConfigError, ValidationError):
        return ""


def _repeated(
    session: Session, tenant: str, key: str | None, pool_id: str, config: dict[str, Any]
) -> RunRow | None:
    """Return the run that the same request made before; ConflictError if the key was used for another request."""
    if key is None:
        return None
    query = select(RunRow).where(RunRow.tenant == tenant, RunRow.idempotency_key == key)
    row = session.scalars(query).one_or_none()
    if row is not None and (row.pool_id != pool_id or row.config != config):
        raise ConflictError(
            f"idempotency key {key!r} was used for another run ({row.id}); send a new key for a new request"
        )
    return row


def _noted(row: RunRow, state: dict[str, Any]) -> dict[str, Any]:
    """Return new notes of a run with the token of its orchestrator."""
    return state | {name: value for name, value in row.state.items() if name == ORCHESTRATOR}


def _add_weights(
    session: Session, run_id: str, role: str, version: int, uri: str, digest: str, **origin: int
) -> None:
    key = {"run_id": run_id, "role": role, "version": version}
    session.merge(WeightsRow(**key, uri=uri, digest=digest, at=time.time(), **origin))
