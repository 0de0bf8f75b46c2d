"""The weight versions of a run, and how a run that nobody works on goes back to one of them."""

from __future__ import annotations

import time

from sqlalchemy import func, select

from services.trainer.run_rows import RunRows, hold, row_of, shown
from triforge.errors import ConflictError, NotFoundError
from triforge.store.tables import RunRow, WeightsRow
from triforge.types import ENDED, RunState, TrainedRole, WeightsRecord


class RunWeights(RunRows):
    """Versions by role and number; every method is one transaction."""

    def add_weights(
        self,
        run_id: str,
        role: TrainedRole,
        version: int,
        uri: str,
        digest: str,
        *,
        origin: int | None = None,
    ) -> None:
        """Record where a version of the run lies, and which it repeats. Recording it twice is the same as once."""
        known = {} if origin is None else {"origin": origin}
        with self._db.write() as session:
            self._guard(hold(session, run_id))
            session.merge(
                WeightsRow(
                    run_id=run_id, role=role, version=version, uri=uri, digest=digest, at=time.time(),
                    **known,
                )
            )  # fmt: skip

    def weights(self, run_id: str, role: TrainedRole, version: int) -> tuple[str, str]:
        """(uri, digest) of a recorded version.

        Raises:
            NotFoundError: the version was never recorded.
        """
        found = self.find_weights(run_id, role, version)
        if found is None:
            raise NotFoundError(f"run {run_id} has no {role} weights of version {version}")
        return found

    def find_weights(self, run_id: str, role: TrainedRole, version: int) -> tuple[str, str] | None:
        """(uri, digest) of a recorded version, or None."""
        with self._db.read() as session:
            row = session.get(WeightsRow, (run_id, role, version))
            return None if row is None else (row.uri, row.digest)

    def weights_of(self, run_id: str, role: TrainedRole | None = None) -> list[WeightsRecord]:
        """All recorded versions of a run, oldest first a role; `kept` is not looked at."""
        query = select(WeightsRow).where(WeightsRow.run_id == run_id)
        if role is not None:
            query = query.where(WeightsRow.role == role)
        with self._db.read() as session:
            rows = session.scalars(query.order_by(WeightsRow.role, WeightsRow.version))
            return [
                WeightsRecord(
                    role=row.role, version=row.version, uri=row.uri, digest=row.digest, at=row.at,
                    origin=row.origin, kept=False,
                )
                for row in rows
            ]  # fmt: skip

    def resting(self, run_id: str) -> RunState:
        """A run that nobody works on.

        Raises:
            NotFoundError: there is no such run.
            ConflictError: it is queued, running or stopping.
        """
        with self._db.read() as session:
            return shown(_rested(row_of(session, run_id)))

    def roll_back(
        self, run_id: str, role: TrainedRole, *, origin: int, new: int, uri: str, digest: str,
        initial: bool,
    ) -> None:  # fmt: skip
        """Let a run stand at version `new`, which repeats `origin`; `initial` if nothing was trained on it.

        Raises:
            ConflictError: the run is no longer at rest.
        """
        with self._db.write() as session:
            row = _rested(hold(session, run_id))
            session.merge(
                WeightsRow(
                    run_id=run_id, role=role, version=new, uri=uri, digest=digest, at=time.time(), origin=origin,
                )
            )  # fmt: skip
            if initial:
                row.state = {**row.state, "base": {**row.state["base"], role: new}}
            _stand(row, role, new)
            row.updated_at = time.time()

    def undo_rollback(self, run: RunState, role: TrainedRole, new: int, base: int) -> None:
        """Let a run stand where it stood before `roll_back` to `new`; `base` is the role's base from before."""
        with self._db.write() as session:
            row = hold(session, run.id)
            found = session.get(WeightsRow, (run.id, role, new))
            if found is not None:
                session.delete(found)
            row.state = {**row.state, "base": {**row.state["base"], role: base}}
            _stand(row, role, run.policy_version if role == "policy" else run.reward_version)

    def newest_weights(self, run_id: str, role: TrainedRole) -> int:
        """The newest recorded version of a role, committed or not; -1 if there is none."""
        with self._db.read() as session:
            query = select(func.max(WeightsRow.version)).where(
                WeightsRow.run_id == run_id, WeightsRow.role == role
            )
            newest = session.scalar(query)
            return -1 if newest is None else newest


def _rested(row: RunRow) -> RunRow:
    if row.status not in ENDED:
        raise ConflictError(
            f"run {row.id} is {row.status}; stop it first: only a run that nobody works on can be rolled back"
        )
    return row


def _stand(row: RunRow, role: TrainedRole, version: int) -> None:
    setattr(row, "policy_version" if role == "policy" else "reward_version", version)
