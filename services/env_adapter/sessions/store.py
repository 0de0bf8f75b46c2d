"""Sessions in SQL: places in groups, rewards and states. All functions block; each change is one transaction.

A place of a group is free, or belongs to one session that has not failed. The group's row is locked while a place is
taken, returned or filled.
"""

from __future__ import annotations

import hmac
import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, TypeAdapter
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, undefer

from triforge.access.callers import caller
from triforge.access.keys import digest, new_key, parse_key
from triforge.config import EnvAdapterSection
from triforge.errors import BusyError, ConflictError, NotFoundError, UnauthorizedError
from triforge.rollout.seeds import derive_seed
from triforge.store.database import Database
from triforge.store.tables import RunRow, SessionGroupRow, SessionRow
from triforge.types import ENDED, GroupTask, Message, OpenSession, SessionReward, SessionState, Turn

_TURNS: Final = TypeAdapter(tuple[Turn, ...])
_ALIVE: Final = ("open", "ended")
EXPIRED: Final = "no reward came before it expired"
OVER: Final = "its run has ended, or goes on without it"

_Name = Annotated[str, Field(max_length=200)]
_Id = Annotated[str, Field(max_length=64)]


class SessionRequest(Message):
    """A request for a session. Produced by: agents. Consumed by: env_adapter (`POST /v1/sessions`).

    With `run` the session takes a place in one of the run's groups: of this `task`, of the group of sessions with the same
    `group`, or else the first free place. Without a run the session is recorded and trains nothing. `lifetime_s` is for
    sessions without a run; sessions of a run have its `env_adapter.episode_deadline_s`.
    """

    run: _Id = ""
    task: _Id = ""
    group: _Name = ""
    tags: Annotated[dict[_Id, _Name], Field(max_length=16)] = Field(default_factory=dict)
    lifetime_s: Annotated[float, Field(gt=0, le=7 * 86_400)] = 3600.0


class SessionEnd(Message):
    """The end of a session. Produced by: agents. Consumed by: env_adapter (`POST /v1/sessions/{id}/end`).

    With an `error` the session is not measured: it gets no reward, and its place becomes free.
    """

    error: Annotated[str, Field(max_length=2000)] = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """A place of a group that is filled, or that is given up; then it has no turns."""

    index: int
    state: SessionState
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """A session that was made: as the policy service knows it, its key, its group, and the seconds until it expires."""

    state: SessionState
    opened: OpenSession
    key: str
    group: GroupTask | None
    left_s: float


class SessionStore:
    """Reads and changes sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- agents ----

    def create(self, request: SessionRequest, idempotency_key: str | None = None) -> Begun:
        """Make a session and its key. The same idempotency key gives the same session again, with a fresh key.

        Raises:
            NotFoundError: there is no such run.
            ConflictError: the run has ended, or is not played by sessions; or the idempotency key was used with another
                request.
            BusyError: no place is free now.
        """
        try:
            return self._create(request, idempotency_key)
        except IntegrityError:  # the same request at the same time
            return self._create(request, idempotency_key)

    def _create(self, request: SessionRequest, idempotency_key: str | None) -> Begun:
        tenant = caller().tenant
        with self._database.write() as session:
            now = self._database.now(session)
            query = select(SessionRow).where(
                SessionRow.tenant == tenant, SessionRow.idempotency_key == idempotency_key
            )
            row = session.scalar(query) if idempotency_key else None
            if row is None:
                row = SessionRow(
                    id=uuid.uuid4().hex[:12],
                    tenant=tenant,
                    status="open",
                    digest="",
                    attempt=0,
                    key=request.group,
                    tags=request.tags,
                    created_at=now,
                    expires_at=now + request.lifetime_s,
                    reason="",
                    idempotency_key=idempotency_key,
                )
                if request.run:
                    _take_place(session, row, request)
                session.add(row)
            elif not _is_of(row, request):
                raise ConflictError(
                    f"Idempotency-Key: it was used with another request, which made session {row.id}; send a new key"
                )
            elif row.status != "open":
                raise ConflictError(
                    f"Idempotency-Key: its session {row.id} is over; send a new key"
                )
            key, row.digest = new_key("tfs", row.id)
            owner = session.get(SessionGroupRow, row.group_id) if row.group_id else None
            group = _task_of(owner) if owner else None
            return Begun(_state_of(row), _opened(row, group), key, group, row.expires_at - now)

    def get(self, session_id: str, key: str = "") -> tuple[SessionState, bool]:
        """Return a session to its own key, or to a caller that sees its tenant, and whether it is to `expire`."""
        with self._database.read() as session:
            state = _state_of(_visible(session, session_id, key))
            late = state.expires_at <= self._database.now(session)
        return state, late and state.status in _ALIVE

    def expire(self, session_id: str, turns: tuple[Turn, ...]) -> SessionState:
        """End a session whose time is over: with its reward, or as failed."""
        with self._database.write() as session:
            row = _locked(session, session_id)
            if row.status in _ALIVE and row.reward is not None:
                row.status = "finished"
                _keep(row, turns)
            elif row.status in _ALIVE:
                _fail(session, row, EXPIRED)
            return _state_of(row)

    def turns(self, session_id: str) -> tuple[Turn, ...] | None:
        """Return the stored turns; None while they are in the broker."""
        with self._database.read() as session:
            text = session.scalar(select(SessionRow.turns).where(SessionRow.id == session_id))
            return None if text is None else _TURNS.validate_json(text)

    def add_reward(
        self, session_id: str, reward: SessionReward, turns: tuple[Turn, ...]
    ) -> SessionState:
        """Store a reward with its turns; a session that is over keeps what it has."""
        with self._database.write() as session:
            row = _locked(session, session_id)
            require_reward_allowed(_state_of(row), reward)
            if row.status in _ALIVE:
                row.reward = reward.model_dump()
                _keep(row, turns)
                if reward.end or row.status == "ended":
                    row.status = "finished"
            return _state_of(row)

    def end(self, session_id: str, error: str, turns: tuple[Turn, ...]) -> SessionState:
        """End a session; with an error and no reward it has failed."""
        with self._database.write() as session:
            row = _locked(session, session_id)
            if row.status in _ALIVE and row.reward is not None:
                row.status = "finished"
                _keep(row, turns)
            elif row.status in _ALIVE and error:
                _fail(session, row, error)
            elif row.status == "open":
                row.status = "ended"
            return _state_of(row)

    def prune(self, kept_s: float) -> None:
        """Delete the turns of sessions that expired so many seconds ago; states and rewards stay."""
        with self._database.write() as session:
            over = SessionRow.expires_at < self._database.now(session) - kept_s
            session.execute(
                update(SessionRow).where(over, SessionRow.turns.is_not(None)).values(turns=None)
            )

    # ---- groups ----

    def open_group(self, group: GroupTask) -> int:
        """Open the places of a group, again if it was closed; return the number of the attempt."""
        with self._database.write() as session:
            now = self._database.now(session)
            row = session.get(SessionGroupRow, group.group_id, with_for_update=True)
            if row is None:
                row = SessionGroupRow(
                    group_id=group.group_id, attempt=0, run_id=group.run_id, task_id=group.task_id, open=False
                )  # fmt: skip
                session.add(row)
            if not row.open:
                row.attempt, row.open, row.key = row.attempt + 1, True, ""
                row.free, row.free_count = [*range(group.rollouts)], group.rollouts
                row.document, row.created_at = group.model_dump(mode="json"), now
            return row.attempt

    def late(self, group_id: str, attempt: int) -> list[str]:
        """Return the sessions of a group that are to `expire`."""
        mine = (SessionRow.group_id == group_id, SessionRow.attempt == attempt)
        alive = select(SessionRow.id).where(*mine, SessionRow.status.in_(_ALIVE))
        with self._database.read() as session:
            due = alive.where(SessionRow.expires_at <= self._database.now(session))
            return list(session.scalars(due))

    def settled(self, group_id: str, attempt: int, known: Iterable[int]) -> list[Settled]:
        """Return the settled places that are not `known`."""
        mine = (SessionRow.group_id == group_id, SessionRow.attempt == attempt)
        with self._database.read() as session:
            group = session.get_one(SessionGroupRow, group_id)
            rows = session.scalars(
                select(SessionRow)
                .where(*mine, SessionRow.index.not_in(set(known)))
                .options(undefer(SessionRow.turns))
                .order_by(SessionRow.created_at)
            ).all()
            taken = {row.index for row in rows if row.status in _ALIVE}
            settled = {
                row.index: Settled(
                    row.index, _state_of(row), _TURNS.validate_json(row.turns or "[]")
                )
                for row in sorted(rows, key=lambda r: r.status == "finished")
                if row.index is not None
            }
            return [s for i, s in settled.items() if i not in taken and i not in group.free]

    def close_group(self, group_id: str) -> list[str]:
        """Close a group; its unfinished sessions have failed. Return their ids."""
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


def _take_place(session: Session, row: SessionRow, request: SessionRequest) -> None:
    """Give a session a place in a group of its run."""
    run = session.get(RunRow, request.run)
    if run is None or not caller().sees(run.tenant):
        raise NotFoundError(f"run {request.run!r} does not exist; `triforge run list` lists all")
    if run.status in ENDED:
        raise ConflictError(f"run {run.id} is {run.status}: it takes no more sessions")
    section = EnvAdapterSection.model_validate(run.config.get("env_adapter", {}))
    if section.played_by != "sessions":
        raise ConflictError(
            f"run {run.id} plays its environment itself; submit a run that agents play with "
            "env_adapter.played_by = 'sessions'"
        )
    group = _free_group(session, request)
    if group is None:
        raise BusyError(
            f"run {run.id} has no free place: its groups are taken, or it trains; try again",
            retry_after_s=1.0,
        )
    row.index, *rest = group.free
    group.free, group.free_count, group.key = rest, len(rest), request.group
    row.tenant, row.run_id = run.tenant, run.id
    row.group_id, row.attempt, row.task_id = group.group_id, group.attempt, group.task_id
    row.expires_at = row.created_at + _task_of(group).env_adapter.episode_deadline_s


def _is_of(row: SessionRow, request: SessionRequest) -> bool:
    """Return whether a request asks for what a session is."""
    asked = request.run, request.group, request.tags
    if asked != (row.run_id or "", row.key, row.tags) or request.task not in ("", row.task_id):
        return False
    return bool(request.run) or math.isclose(row.created_at + request.lifetime_s, row.expires_at, rel_tol=1e-12)  # fmt: skip


def _free_group(session: Session, request: SessionRequest) -> SessionGroupRow | None:
    """Lock and return the oldest group with a free place.

    A request with a group's key gets the group of that key, or else a group without any session.
    """
    query = select(SessionGroupRow).where(
        SessionGroupRow.run_id == request.run,
        SessionGroupRow.open.is_(True),
        SessionGroupRow.free_count > 0,
    )
    if request.task:
        query = query.where(SessionGroupRow.task_id == request.task)
    query = query.order_by(SessionGroupRow.created_at, SessionGroupRow.group_id)
    query = query.with_for_update()
    known = session.scalar(query.where(SessionGroupRow.key == request.group).limit(1))
    if known is not None or not request.group:
        return known
    fresh = session.scalars(query.where(SessionGroupRow.key == "")).all()
    return next((g for g in fresh if g.free_count == g.document["rollouts"]), None)


def _visible(session: Session, session_id: str, key: str) -> SessionRow:
    """Return a session's row to its own key or to a caller that sees its tenant."""
    row = session.get(SessionRow, session_id)
    parts = parse_key("tfs", key)
    if row is None or (parts is None and not caller().sees(row.tenant)):
        raise NotFoundError(f"session {session_id[:80]!r} does not exist")
    if parts is not None and not hmac.compare_digest(digest(parts[1]), row.digest):
        raise UnauthorizedError(f"this is not the key of session {session_id}")
    return row


def _locked(session: Session, session_id: str) -> SessionRow:
    """Lock the row of a session's group, then the session's own, until the end of the transaction."""
    group = session.scalar(select(SessionRow.group_id).where(SessionRow.id == session_id))
    if group is not None:
        session.get(SessionGroupRow, group, with_for_update=True)
    return session.get_one(SessionRow, session_id, with_for_update=True, populate_existing=True)


def _fail(session: Session, row: SessionRow, reason: str) -> None:
    """End a session without a reward; its place becomes free, unless it was tried too often."""
    row.status, row.reason = "failed", reason
    group = session.get(SessionGroupRow, row.group_id) if row.group_id else None
    if group is None or not group.open or group.attempt != row.attempt:
        return
    session.flush()
    failed = session.scalar(
        select(func.count())
        .select_from(SessionRow)
        .where(
            SessionRow.group_id == row.group_id,
            SessionRow.attempt == row.attempt,
            SessionRow.index == row.index,
            SessionRow.status == "failed",
        )
    )
    if (failed or 0) <= _task_of(group).env_adapter.episode_retries:
        group.free = [*group.free, row.index]
        group.free_count = len(group.free)


def _task_of(group: SessionGroupRow) -> GroupTask:
    return GroupTask.model_validate(group.document)


def _keep(row: SessionRow, turns: tuple[Turn, ...]) -> None:
    """Store turns, unless the broker has lost them."""
    if turns:
        row.turns = _TURNS.dump_json(turns).decode()


def _state_of(row: SessionRow) -> SessionState:
    """Convert a row to a message."""
    return SessionState.model_validate(
        {name: getattr(row, name) for name in SessionState.model_fields}
    )


def require_reward_allowed(state: SessionState, reward: SessionReward) -> None:
    """Raise ConflictError for a reward that differs from the first one, or that comes too late."""
    if state.reward is not None:
        if state.reward.model_copy(update={"end": reward.end}) != reward:
            first = state.reward.model_dump_json(exclude={"end"})
            raise ConflictError(
                f"session {state.id} has the reward {first} already, and a session has one reward"
            )
    elif state.status not in _ALIVE:
        raise ConflictError(f"session {state.id} has ended without a reward: {state.reason}")


def _opened(row: SessionRow, group: GroupTask | None) -> OpenSession:
    """Describe a session to the policy service."""
    index = row.index or 0
    return OpenSession(
        id=row.id,
        digest=row.digest,
        expires_at=row.expires_at,
        affinity=row.group_id or row.id,
        sampling=group.sampling if group else None,
        seed=derive_seed(group.seed, index) if group else None,
        oldest=group.oldest.get("policy", 0) if group else 0,
    )
