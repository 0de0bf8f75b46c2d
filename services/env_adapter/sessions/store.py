"""Sessions in SQL: places in groups, rewards and states. Synchronous; a transaction a change.

A place of a group is free, or one session has it that has not failed. Whoever takes it, gives it back or fills it holds the
group's row.
"""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, undefer

from services.env_adapter.pools.requests import SessionRequest
from triforge.access.callers import caller
from triforge.access.keys import digest, new_key, parse_key
from triforge.errors import BusyError, ConflictError, NotFoundError, UnauthorizedError
from triforge.rollout.seeds import derive_seed
from triforge.store.database import Database
from triforge.store.tables import RunRow, SessionGroupRow, SessionRow
from triforge.types import ENDED, GroupTask, OpenSession, SessionReward, SessionState, Turn

_TURNS: Final = TypeAdapter(tuple[Turn, ...])
_ALIVE: Final = ("open", "ended")
EXPIRED: Final = "no reward came before it expired"
OVER: Final = "its run has ended, or goes on without it"


@dataclass(frozen=True, slots=True)
class Settled:
    """A place of a group that is filled, or that nobody fills any more; it has no turns then."""

    index: int
    state: SessionState
    turns: tuple[Turn, ...]


class SessionStore:
    """Reads and changes sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- agents ----

    def create(
        self, wanted: SessionRequest, asked: str | None = None
    ) -> tuple[SessionState, OpenSession, str, GroupTask | None]:
        """Make a session, with its key. The same idempotency key gives the same session again, with a fresh key.

        Raises:
            NotFoundError: there is no such run.
            ConflictError: the run has ended, or is not played by sessions.
            BusyError: no place is free; one may be in a moment.
        """
        try:
            return self._create(wanted, asked)
        except IntegrityError:  # the same request at the same time
            return self._create(wanted, asked)

    def _create(
        self, wanted: SessionRequest, asked: str | None
    ) -> tuple[SessionState, OpenSession, str, GroupTask | None]:
        tenant, now = caller().tenant, time.time()
        with self._database.write() as session:
            query = select(SessionRow).where(
                SessionRow.tenant == tenant, SessionRow.idempotency_key == asked
            )
            row = session.scalar(query) if asked else None
            if row is None:
                row = SessionRow(
                    id=uuid.uuid4().hex[:12], tenant=tenant, status="open", digest="", attempt=0, key=wanted.group,
                    tags=wanted.tags, created_at=now, expires_at=now + wanted.lifetime_s, reason="", idempotency_key=asked,
                )  # fmt: skip
                if wanted.run:
                    self._place(session, row, wanted, now)
                session.add(row)
            elif row.status != "open":
                raise ConflictError(
                    f"Idempotency-Key: the session {row.id} that it made is over; send a new key"
                )
            key, row.digest = new_key("tfs", row.id)
            owner = session.get(SessionGroupRow, row.group_id) if row.group_id else None
            group = GroupTask.model_validate(owner.document) if owner else None
            return state_of(row), _opened(row, group), key, group

    def _place(self, session: Session, row: SessionRow, wanted: SessionRequest, now: float) -> None:
        run = session.get(RunRow, wanted.run)
        if run is None or not caller().sees(run.tenant):
            raise NotFoundError(f"run {wanted.run!r} does not exist; `triforge run list` lists all")
        if run.status in ENDED:
            raise ConflictError(f"run {run.id} is {run.status}: it takes no more sessions")
        if run.config.get("env_adapter", {}).get("played_by") != "sessions":
            raise ConflictError(
                f"run {run.id} plays its environment itself; one that agents play is submitted with "
                "env_adapter.played_by = 'sessions'"
            )
        group = self._group_for(session, wanted)
        if group is None:
            raise BusyError(
                f"run {run.id} has no free place now: its groups are taken, or it trains; ask again",
                retry_after_s=1.0,
            )
        index, *rest = group.free
        group.free, group.free_count, group.key = rest, len(rest), wanted.group
        row.tenant, row.run_id, row.group_id, row.attempt = (
            run.tenant, run.id, group.group_id, group.attempt,
        )  # fmt: skip
        row.index, row.task_id = index, group.task_id
        deadline_s = GroupTask.model_validate(group.document).env_adapter.episode_deadline_s
        row.expires_at = now + deadline_s

    def _group_for(self, session: Session, wanted: SessionRequest) -> SessionGroupRow | None:
        """The oldest group with a free place, held; with a key one that has it, or else one that nobody has begun."""
        query = select(SessionGroupRow).where(
            SessionGroupRow.run_id == wanted.run,
            SessionGroupRow.open.is_(True),
            SessionGroupRow.free_count > 0,
        )
        if wanted.task:
            query = query.where(SessionGroupRow.task_id == wanted.task)
        query = query.order_by(SessionGroupRow.created_at, SessionGroupRow.group_id)
        query = query.with_for_update()
        found = session.scalar(query.where(SessionGroupRow.key == wanted.group).limit(1))
        if found is not None or not wanted.group:
            return found
        fresh = session.scalars(query.where(SessionGroupRow.key == "")).all()
        return next((g for g in fresh if g.free_count == g.document["rollouts"]), None)

    def get(self, session_id: str, key: str = "") -> SessionState:
        """A session for its own key, else for who sees its tenant. One whose time is over is brought to its end."""
        with self._database.read() as session:
            state = state_of(self._row(session, session_id, key))
        if state.status not in _ALIVE or state.expires_at > time.time():
            return state
        with self._database.write() as session:
            row = self._row(session, session_id, key)
            self._expire(session, row)
            return state_of(row)

    def turns(self, session_id: str) -> tuple[Turn, ...] | None:
        """The turns that lie here; None while they are in flight."""
        with self._database.read() as session:
            text = session.scalar(select(SessionRow.turns).where(SessionRow.id == session_id))
            return None if text is None else _TURNS.validate_json(text)

    def give(self, session_id: str, reward: SessionReward, turns: tuple[Turn, ...]) -> SessionState:
        """Keep a reward with the turns that it is for; of a session that is over both stay as they are."""
        with self._database.write() as session:
            row = self._held(session, session_id)
            demand_open_to(state_of(row), reward)
            if row.status in _ALIVE:
                row.reward = reward.model_dump()
                _keep(row, turns)
                if reward.end or row.status == "ended":
                    row.status = "finished"
            return state_of(row)

    def end(self, session_id: str, error: str, turns: tuple[Turn, ...]) -> SessionState:
        """End a session; with an error it has failed, unless it has a reward."""
        with self._database.write() as session:
            row = self._held(session, session_id)
            if row.status in _ALIVE and row.reward is not None:
                row.status = "finished"
                _keep(row, turns)
            elif row.status in _ALIVE and error:
                self._fail(session, row, error)
            elif row.status == "open":
                row.status = "ended"
            return state_of(row)

    def prune(self, kept_s: float) -> None:
        """Forget the turns of sessions whose time was over so long ago; their states and rewards stay."""
        over = SessionRow.expires_at < time.time() - kept_s
        with self._database.write() as session:
            session.execute(
                update(SessionRow).where(over, SessionRow.turns.is_not(None)).values(turns=None)
            )

    # ---- groups ----

    def open_group(self, group: GroupTask) -> int:
        """Open the places of a group, anew if it was complete before; returns the attempt."""
        with self._database.write() as session:
            row = session.get(SessionGroupRow, group.group_id, with_for_update=True)
            if row is None:
                row = SessionGroupRow(
                    group_id=group.group_id, attempt=0, run_id=group.run_id, task_id=group.task_id, open=False
                )  # fmt: skip
                session.add(row)
            if not row.open:
                row.attempt, row.open, row.key = row.attempt + 1, True, ""
                row.free, row.free_count = [*range(group.rollouts)], group.rollouts
                row.document, row.created_at = group.model_dump(mode="json"), time.time()
            return row.attempt

    def settled(self, group_id: str, attempt: int, known: Iterable[int]) -> list[Settled]:
        """The places that are settled, without those that are known already."""
        mine = (SessionRow.group_id == group_id, SessionRow.attempt == attempt)
        due = select(SessionRow).where(
            *mine, SessionRow.status.in_(_ALIVE), SessionRow.expires_at <= time.time()
        )
        with self._database.read() as session:
            late = [row.id for row in session.scalars(due)]
        if late:
            with self._database.write() as session:
                for session_id in late:
                    self._expire(session, self._held(session, session_id))
        with self._database.read() as session:
            group = session.get_one(SessionGroupRow, group_id)
            rows = session.scalars(
                select(SessionRow)
                .where(*mine, SessionRow.index.not_in(set(known)))
                .options(undefer(SessionRow.turns))
                .order_by(SessionRow.created_at)
            ).all()
            taken = {row.index for row in rows if row.status in _ALIVE}
            found = {
                row.index: Settled(
                    row.index, state_of(row), _TURNS.validate_json(row.turns or "[]")
                )
                for row in sorted(rows, key=lambda r: r.status == "finished")
                if row.index is not None
            }
            return [s for i, s in found.items() if i not in taken and i not in group.free]

    def close_group(self, group_id: str) -> list[str]:
        """Take no more sessions into a group; those that go on in it have failed. Returns their ids."""
        with self._database.write() as session:
            group = session.get(SessionGroupRow, group_id, with_for_update=True)
            if group is None:
                return []
            group.open, group.free, group.free_count = False, [], 0
            left = session.scalars(
                select(SessionRow).where(
                    SessionRow.group_id == group_id, SessionRow.status.in_(_ALIVE)
                )
            ).all()
            for row in left:
                row.status, row.reason = "failed", OVER
            return [row.id for row in left]

    # ---- inside of a transaction ----

    def _row(self, session: Session, session_id: str, key: str) -> SessionRow:
        row = session.get(SessionRow, session_id)
        given = parse_key("tfs", key)
        if row is None or (given is None and not caller().sees(row.tenant)):
            raise NotFoundError(f"session {session_id[:80]!r} does not exist")
        if given is not None and not hmac.compare_digest(digest(given[1]), row.digest):
            raise UnauthorizedError(f"this is not the key of session {session_id}")
        return row

    def _held(self, session: Session, session_id: str) -> SessionRow:
        """The row of a session and, before it, of its group, until the end of the transaction."""
        group = session.scalar(select(SessionRow.group_id).where(SessionRow.id == session_id))
        if group is not None:
            session.get(SessionGroupRow, group, with_for_update=True)
        return session.get_one(SessionRow, session_id, with_for_update=True, populate_existing=True)

    def _expire(self, session: Session, row: SessionRow) -> None:
        if row.reward is not None:
            row.status = "finished"
        else:
            self._fail(session, row, EXPIRED)

    def _fail(self, session: Session, row: SessionRow, reason: str) -> None:
        """Nothing was measured; the place is free again, unless it was tried too often."""
        row.status, row.reason = "failed", reason
        group = session.get(SessionGroupRow, row.group_id) if row.group_id else None
        if group is None or not group.open or group.attempt != row.attempt:
            return
        session.flush()
        failed = session.scalar(
            select(func.count())
            .select_from(SessionRow)
            .where(
                SessionRow.group_id == row.group_id, SessionRow.attempt == row.attempt,
                SessionRow.index == row.index, SessionRow.status == "failed",
            )
        )  # fmt: skip
        retries = GroupTask.model_validate(group.document).env_adapter.episode_retries
        if (failed or 0) <= retries:
            group.free = [*group.free, row.index]
            group.free_count = len(group.free)


def _keep(row: SessionRow, turns: tuple[Turn, ...]) -> None:
    """Turns only become more; none are where Redis has forgotten them."""
    if turns:
        row.turns = _TURNS.dump_json(turns).decode()


def state_of(row: SessionRow) -> SessionState:
    """A row as a message."""
    return SessionState.model_validate(
        {name: getattr(row, name) for name in SessionState.model_fields}
    )


def demand_open_to(state: SessionState, reward: SessionReward) -> None:
    """ConflictError for a second reward that differs from the first, and for one that comes too late."""
    if state.reward is not None:
        if state.reward.model_copy(update={"end": reward.end}) != reward:
            given = state.reward.model_dump_json(exclude={"end"})
            raise ConflictError(
                f"session {state.id} has a reward already, {given}: it is given once"
            )
    elif state.status not in _ALIVE:
        raise ConflictError(f"session {state.id} takes no reward any more: {state.reason}")


def _opened(row: SessionRow, group: GroupTask | None) -> OpenSession:
    index = row.index or 0
    return OpenSession(
        id=row.id,
        digest=row.digest,
        expires_at=row.expires_at,
        affinity=row.group_id or row.id,
        sampling=group.sampling if group else None,
        seed=derive_seed(group.seed, index) if group else None,
    )
