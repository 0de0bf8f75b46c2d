"""Plans: the task versions that a step plays. A plan is decided once and stored, so a resumed step plays the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.env_adapter.pools.rows import lock_pool, pool_row
from services.env_adapter.pools.slots import withdraw_foreign
from triforge.errors import ConflictError, InputError, PausedError
from triforge.store.database import Database
from triforge.store.tables import PlanRow, PoolRow, ProposalRow, TaskRow
from triforge.types import Page, PlannedGroup, PlanRequest, Purpose

_BLOCK: Final = 1_000  # positions of one query; SQLite takes 32,766 at most


class Planner:
    """Makes plans."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def plan(self, pool: str, request: PlanRequest) -> Page[PlannedGroup]:
        """Return the plan of a step; the first request decides it, later requests read it.

        A plan to train has a pair of groups (parent, candidate) for each pending proposal, oldest first, at most
        `max_pending` of them, and `groups` active training tasks without a proposal. Without `pairs_on_top` each pair takes
        the place of two groups. The tasks are drawn without replacement by a permutation that goes on from step to step. No
        slot is played twice in a plan, so a small pool gives fewer groups. Proposals that other runs left pending are
        withdrawn first. A refill draws further tasks, as many as there are. A plan to evaluate
        has the first held-out tasks.

        Raises:
            NotFoundError: there is no such pool.
            InputError: a plan to train on a pool without training tasks.
            ConflictError: this step was planned for another pool, the pool is retired, or no training task of it can be
                played now.
            PausedError: the pool is paused, and this step has no plan yet.
        """
        with self._database.write() as session:
            owner = lock_pool(session, pool_row(session, pool).id)
            row = session.get(PlanRow, (request.run_id, request.step, _kind(request)))
            if row is None:
                _require_open(owner)
                row = _decide(session, owner.id, request)
                session.add(row)
            if row.pool_id != owner.id:
                raise ConflictError(
                    f"run {request.run_id} planned step {request.step} for pool {row.pool_id}, given {owner.id}; "
                    "a run keeps its pool"
                )
            return Page[PlannedGroup](
                items=tuple(PlannedGroup.model_validate(group) for group in row.groups)
            )


def _kind(request: PlanRequest) -> str:
    return f"{request.kind}-{request.refill}" if request.refill else request.kind


def _require_open(pool: PoolRow) -> None:
    if pool.state == "paused":
        raise PausedError(
            f"pool {pool.name!r} is paused; continue its runs with `triforge pool resume {pool.name}`"
        )
    if pool.state == "retired":
        raise ConflictError(f"pool {pool.name!r} is retired: no run can play it")


def _decide(session: Session, pool_id: str, request: PlanRequest) -> PlanRow:
    # The cursor counts positions of the permutations; a refill of a step may come after the plan of the next step.
    earlier = select(func.max(PlanRow.cursor)).where(PlanRow.run_id == request.run_id)
    cursor = session.scalar(earlier) or 0
    if request.kind == "evaluate":
        groups = _heldout(session, pool_id, request.groups)
    else:
        groups = [] if request.refill else _pairs(session, pool_id, request)
        wanted = request.groups - (0 if request.pairs_on_top else len(groups))
        drawn, cursor = _draw(session, pool_id, request, wanted, cursor)
        groups += drawn
        if not groups and not request.refill:
            raise _nothing_to_play(session, pool_id, request)
    return PlanRow(
        run_id=request.run_id,
        step=request.step,
        kind=_kind(request),
        pool_id=pool_id,
        cursor=cursor,
        groups=[group.model_dump(mode="json") for group in groups],
    )


def _heldout(session: Session, pool_id: str, groups: int) -> list[PlannedGroup]:
    rows = session.execute(
        select(TaskRow.id, TaskRow.slot)
        .where(TaskRow.pool_id == pool_id, TaskRow.split == "heldout", TaskRow.state == "active")
        .order_by(TaskRow.position)
        .limit(groups)
    )
    return [PlannedGroup(task_id=id_, slot=slot, purpose="evaluate") for id_, slot in rows]


def _pairs(session: Session, pool_id: str, request: PlanRequest) -> list[PlannedGroup]:
    pairs = request.max_pending
    if pairs:
        withdraw_foreign(session, pool_id, request.run_id)
    if not request.pairs_on_top:
        pairs = min(pairs, request.groups // 2)
    rows = session.scalars(
        select(ProposalRow)
        .where(ProposalRow.pool_id == pool_id, ProposalRow.state == "pending")
        .order_by(ProposalRow.created_at, ProposalRow.id)
        .limit(pairs)
    )
    both: tuple[tuple[str, Purpose], ...] = (
        ("parent_id", "measure_parent"),
        ("candidate_id", "measure_candidate"),
    )
    return [
        PlannedGroup(
            task_id=row.document[version], slot=row.slot, purpose=purpose, proposal_id=row.id
        )
        for row in rows
        for version, purpose in both
    ]


def _draw(
    session: Session, pool_id: str, request: PlanRequest, groups: int, cursor: int
) -> tuple[list[PlannedGroup], int]:
    """Draw `groups` training tasks from the position `cursor` on; return them with the new position.

    A slot that cannot be played when its turn comes (pending, paused, or drawn already at the end of the previous
    permutation) waits for the next permutation. A run that measures no proposals (`max_pending` 0) also plays the active
    version of pending slots, so the proposals of another run take no tasks from it.
    """
    in_split = (TaskRow.pool_id == pool_id, TaskRow.split == "train")
    last = session.scalar(select(func.max(TaskRow.position)).where(*in_split))
    if last is None:
        raise InputError(f"pool {pool_id} has no training tasks; only evaluate plans are possible")
    pending = select(TaskRow.slot).where(*in_split, TaskRow.state == "pending")
    busy = set(session.scalars(pending)) if request.max_pending else set()
    played = select(TaskRow.position, TaskRow.id, TaskRow.slot).where(
        *in_split, TaskRow.state == "active"
    )
    active = session.scalar(select(func.count()).select_from(played.subquery())) or 0
    wanted = min(groups, active - len(busy))
    positions = _positions(last + 1, request.seed, cursor)
    end = cursor + 2 * (last + 1)  # the rest of one permutation and all of the next hold every slot
    drawn: dict[int, PlannedGroup] = {}
    size = 2 * wanted  # doubles, so few queries find the tasks where few slots are playable
    while len(drawn) < wanted and cursor < end:
        block = list(islice(positions, min(size, _BLOCK)))
        size *= 2
        rows = session.execute(played.where(TaskRow.position.in_(block)))
        playable = {place: (id_, slot) for place, id_, slot in rows if slot not in busy}
        for position in block:
            if len(drawn) == wanted:
                break
            cursor += 1
            if position in playable and position not in drawn:
                id_, slot = playable[position]
                drawn[position] = PlannedGroup(task_id=id_, slot=slot, purpose="train")
    return list(drawn.values()), cursor


def _nothing_to_play(session: Session, pool_id: str, request: PlanRequest) -> ConflictError:
    counts = session.execute(
        select(TaskRow.state, func.count())
        .where(TaskRow.pool_id == pool_id, TaskRow.split == "train")
        .group_by(TaskRow.state)
        .order_by(TaskRow.state)
    )
    states = ", ".join(f"{count} {state}" for state, count in counts)
    pair = (
        "; without adaptation.pairs_on_top, run.groups_per_step must be at least 2: a pending rewrite is measured by a "
        "pair of groups"
        if request.groups < 2 and not request.pairs_on_top
        else ""
    )
    return ConflictError(
        f"no training task of pool {pool_id} can be played now: its versions are {states}{pair}"
    )


def _positions(slots: int, seed: int, cursor: int) -> Iterator[int]:
    """Yield the positions from `cursor` on in an endless sequence of permutations."""
    while True:
        epoch, offset = divmod(cursor, slots)
        yield from _permutation(slots, seed, epoch)[offset:]
        cursor += slots - offset


@lru_cache(maxsize=8)
def _permutation(slots: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(slots))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 (a draw of tasks, no secret)
    return tuple(order)
