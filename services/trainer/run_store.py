"""Runs and their steps in the database. One transaction moves a run by one step."""

from __future__ import annotations

import time
import uuid
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from services.trainer.run_rows import ORCHESTRATOR, hold, row_of, shown
from services.trainer.run_weights import RunWeights
from triforge.access.callers import DEFAULT, caller, own
from triforge.access.tenants import demand_service_for_run, hold_tenant
from triforge.errors import ConflictError, InputError
from triforge.store.tables import RunRow, StepRow
from triforge.types import ENDED, RunPage, RunState, RunStatus, RunStep


class RunStore(RunWeights):
    """Synchronous access to the run tables; every method is one transaction.

    Args:
        database: opened, its schema at head.
    """

    def create(
        self, *, name: str, pool_id: str, config: dict[str, Any], idempotency_key: str | None = None,
        tenant: str = DEFAULT,
    ) -> RunState:  # fmt: skip
        """Queue a run. The same idempotency key of a tenant returns the run it made the first time.

        Raises:
            ConflictError: the key was used for another run.
            QuotaError: the tenant may have no further unfinished run.
        """
        now = time.time()
        with self._db.write() as session:
            tenant_row = hold_tenant(session, tenant)  # two requests with one key take turns
            found = _repeated(session, tenant_row.name, idempotency_key, pool_id, config)
            if found is not None:
                return shown(found)
            demand_service_for_run(session, tenant)
            row = RunRow(
                id=f"run-{uuid.uuid4().hex[:10]}", name=name, pool_id=pool_id, status="queued", step=-1,
                policy_version=0, reward_version=0, config=config, state={}, reason="", tenant=tenant,
                idempotency_key=idempotency_key, created_at=now, updated_at=now,
            )  # fmt: skip
            session.add(row)
        return shown(row)

    def get(self, run_id: str) -> RunState:
        """The run.

        Raises:
            NotFoundError: there is no such run.
        """
        with self._db.read() as session:
            return shown(row_of(session, run_id))

    def runs(self, *, cursor: str = "", limit: int = 100) -> RunPage:
        """Runs, newest first, after the run `cursor`; InputError if that is none of the caller's."""
        with self._db.read() as session:
            query = select(RunRow).where(*own(RunRow.tenant))
            if cursor:
                last = session.get(RunRow, cursor)
                if last is None or not caller().sees(last.tenant):
                    raise InputError(f"cursor: given {cursor!r}, expected a next_cursor of ours")
                place = tuple_(RunRow.created_at, RunRow.id)
                query = query.where(place < (last.created_at, last.id))
            newest = query.order_by(RunRow.created_at.desc(), RunRow.id.desc())
            rows = session.scalars(newest.limit(limit + 1)).all()
            more = rows[limit - 1].id if len(rows) > limit else None
            return RunPage(runs=tuple(map(shown, rows[:limit])), next_cursor=more)

    def count_by_status(self) -> dict[str, int]:
        """How many runs are in each status; none is left out."""
        with self._db.read() as session:
            found = session.execute(select(RunRow.status, func.count()).group_by(RunRow.status))
            return {row[0]: row[1] for row in found}

    def next_runnable(self) -> RunState | None:
        """The run to work on: one that was running when the process ended, else the oldest queued one."""
        with self._db.read() as session:
            for status in ("running", "stopping", "queued"):
                row = session.scalars(
                    select(RunRow).where(RunRow.status == status).order_by(RunRow.created_at)
                ).first()
                if row is not None:
                    return shown(row)
        return None

    def status(self, run_id: str) -> RunStatus:
        """The run's status now."""
        with self._db.read() as session:
            return self._guard(row_of(session, run_id)).status  # type: ignore[return-value]

    def take(self, run_id: str) -> RunState:
        """Begin a queued run; one that was asked to stop in the meantime keeps its status. It is this orchestrator's now."""
        with self._db.write() as session:
            row = hold(session, run_id)
            if row.status == "queued":
                row.status, row.updated_at = "running", time.time()
            if self._holder and row.status not in ENDED:
                row.state = {**row.state, ORCHESTRATOR: self._holder}
            return shown(row)

    def say(self, run_id: str, reason: str) -> None:
        """Tell people what a run waits for; the next finished step takes it back."""
        with self._db.write() as session:
            self._guard(hold(session, run_id)).reason = reason

    def set_status(self, run_id: str, status: RunStatus, reason: str = "") -> None:
        """Move the run to a status."""
        with self._db.write() as session:
            row = self._guard(hold(session, run_id))
            row.status, row.reason, row.updated_at = status, reason, time.time()

    def request_stop(self, run_id: str) -> RunState:
        """Ask a run to stop after what it is doing. Stopping twice is the same as once.

        Raises:
            ConflictError: the run has ended already.
        """
        with self._db.write() as session:
            row = hold(session, run_id)
            if row.status in ENDED:
                raise ConflictError(
                    f"run {run_id} is {row.status}; only a queued or running run can be stopped"
                )
            row.status = "stopped" if row.status == "queued" else "stopping"
            row.updated_at = time.time()
            return shown(row)

    def resume(self, run_id: str) -> RunState:
        """Queue a stopped or failed run again; it goes on after its last finished step.

        Raises:
            ConflictError: the run is not stopped or failed.
            QuotaError: the tenant may have no further unfinished run.
        """
        with self._db.write() as session:
            row = hold(session, run_id)
            if row.status not in ("stopped", "failed"):
                raise ConflictError(
                    f"run {run_id} is {row.status}; only a stopped or failed run can be resumed"
                )
            demand_service_for_run(session, row.tenant)
            row.status, row.reason, row.updated_at = "queued", "", time.time()
            return shown(row)

    def begin(self, run_id: str, *, state: dict[str, Any], policy: int, reward: int) -> None:
        """Record the versions the run stands at without a step: its base, or new numbers for the same weights."""
        with self._db.write() as session:
            row = self._guard(hold(session, run_id))
            row.state = _noted(row, state)
            row.policy_version, row.reward_version = policy, reward

    def run_state(self, run_id: str) -> dict[str, Any]:
        """The orchestrator's own notes on the run (initial folders, base versions)."""
        with self._db.read() as session:
            notes = row_of(session, run_id).state
            return {name: value for name, value in notes.items() if name != ORCHESTRATOR}

    def note(self, run_id: str, name: str, value: Any) -> None:
        """Write one of the orchestrator's notes; the others stay."""
        with self._db.write() as session:
            row = self._guard(hold(session, run_id))
            row.state = {**row.state, name: value}

    def commit_step(self, step: RunStep, state: dict[str, Any] | None = None) -> bool:
        """Write a finished step and move the run to it, in one transaction; False if it was written before.

        `state` replaces the orchestrator's notes in the same transaction.
        """
        with self._db.write() as session:
            row = self._guard(hold(session, step.run_id))
            if session.get(StepRow, (step.run_id, step.step)) is not None:
                return False
            row.step, row.updated_at, row.reason = step.step, step.at, ""
            row.policy_version, row.reward_version = step.policy_version, step.reward_version
            row.state = row.state if state is None else _noted(row, state)
            session.add(
                StepRow(
                    run_id=step.run_id, step=step.step, policy_version=step.policy_version,
                    reward_version=step.reward_version, metrics=step.metrics, artifacts=step.artifacts, at=step.at,
                )
            )  # fmt: skip
            return True

    def steps_after(self, run_id: str, after: int) -> list[RunStep]:
        """All finished steps after one, in order."""
        return self.steps(run_id, after=after, limit=1_000_000)

    def steps(self, run_id: str, *, after: int = -1, limit: int = 1000) -> list[RunStep]:
        """Finished steps in order."""
        with self._db.read() as session:
            row_of(session, run_id)
            rows = session.scalars(
                select(StepRow)
                .where(StepRow.run_id == run_id, StepRow.step > after)
                .order_by(StepRow.step)
                .limit(limit)
            )
            return [
                RunStep(
                    run_id=row.run_id, step=row.step, at=row.at, policy_version=row.policy_version,
                    reward_version=row.reward_version, metrics=row.metrics, artifacts=row.artifacts,
                )
                for row in rows
            ]  # fmt: skip


def _repeated(
    session: Session, tenant: str, key: str | None, pool_id: str, config: dict[str, Any]
) -> RunRow | None:
    """The run that this very request made before.

    Raises:
        ConflictError: the key was used for another request.
    """
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
    """Other notes of a run, by the same orchestrator."""
    return state | {name: value for name, value in row.state.items() if name == ORCHESTRATOR}
