"""The controller `ladder`: every training group's slot goes on with a fresh task from the ladder's window.

The family's generator makes the task, at a level drawn evenly from the window; groups of the top level move the window
(`triforge.algorithms.ladder`). The count, the move and the new version are one transaction, and the id of its proposal
follows from the group: a repeated delivery finds it and changes nothing. A run's ladder is its own and goes on where it
stood; tasks that no ladder made (a pool's first ones) have no level and count nothing.

Where the pool's approval is "manual", the fresh task waits for a person and the slot plays on as it is, with no further
offer meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.env_adapter.adaptation.controllers import CONTROLLERS
from services.env_adapter.adaptation.measurement import Closed, new_proposal, proposal_id
from services.env_adapter.rows import lock_pool, new_row, task_in
from services.env_adapter.slots import replace, successor, withdraw
from triforge.algorithms.ladder import Ladder, LadderRule
from triforge.config import LadderSection
from triforge.errors import InputError
from triforge.rollout.adapting import Levels
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.store.database import Database
from triforge.store.tables import LadderRow, LevelRow, PoolRow, ProposalRow, TaskRow
from triforge.types import Proposal, Task, TaskOutcome

_DRAWS: Final = 8  # of level and seed before the slot is left as it is
_MADE = Closed("this group led to a task already")


class LadderController:
    """Replaces tasks."""

    def __init__(self, database: Database, family: Callable[[str], EnvironmentFamily]) -> None:
        self._database = database
        self._family = family
        self._refused: set[tuple[str, int, str]] = set()  # levels that the generator cannot make

    async def respond(self, outcome: TaskOutcome) -> Proposal | Closed:
        """The slot's next task. All measured groups count, whatever is trained on later."""
        if outcome.purpose != "train" or not outcome.adapt:
            return Closed("not a training group")
        return await asyncio.to_thread(self._respond, outcome)

    def _respond(self, outcome: TaskOutcome) -> Proposal | Closed:
        name = proposal_id(outcome.group_id)
        with self._database.read() as session:
            if session.get(ProposalRow, name) is not None:
                return _MADE
            task = task_in(session, outcome.task_id)
            ladder = _ladder(session, outcome)
        level, fresh, refused = self._draw(name, task, ladder, outcome.settings.adaptation.ladder)
        with self._database.write() as session:
            lock_pool(session, outcome.pool_id)
            if session.get(ProposalRow, name) is not None:
                return _MADE
            moved = _count(session, outcome)
            task = task_in(session, outcome.task_id)
            why_not = _why_not(session, task) or refused
            window = (
                f"ladder: the window is {moved.low} to {moved.high}, "
                f"{moved.correct} of {moved.counted} at its top"
            )
            proposal = new_proposal(
                outcome, task, direction="harder", controller="ladder", reason=why_not or window
            )
            if fresh is not None and not why_not:
                proposal = _take(session, proposal, fresh, level)
            session.add(new_row(proposal))
            return proposal

    def _draw(
        self, name: str, task: Task, ladder: Ladder, section: LadderSection
    ) -> tuple[int, TaskDraft | None, str]:
        """(level, task, why there is none). A level that the generator refuses is not asked for again."""
        family = self._family(task.family)
        if not isinstance(family, Levels):
            return 0, None, f"the environment {task.family!r} has no difficulty levels"
        why = f"no level of {ladder.low} to {ladder.high} can be made"
        for number in range(_DRAWS):
            seed = derive_seed(name, "ladder", number)
            level = ladder.level(seed)
            key = (task.family, level, repr(section.options))
            if key in self._refused:
                continue
            try:
                options = family.at_level(level, section.options)
                (params,) = family.generate(count=1, seed=seed, options=options)
                return level, family.validate(params), ""
            except InputError as error:
                self._refused.add(key)
                why = f"level {level}: {error.detail}"
        return 0, None, why


def _take(session: Session, proposal: Proposal, fresh: TaskDraft, level: int) -> Proposal:
    parent = session.get_one(TaskRow, proposal.parent_id)
    before = session.get(LevelRow, parent.id)
    manual = session.get_one(PoolRow, parent.pool_id).approval == "manual"
    withdraw(session, ProposalRow.slot == parent.slot, "the ladder made another task")
    candidate = successor(session, parent, fresh, state="awaiting" if manual else "pending")
    session.add(candidate)
    session.flush()
    if not manual:
        replace(session, parent, candidate)
    session.add(LevelRow(task_id=candidate.id, level=level))
    return proposal.model_copy(
        update={
            "state": "awaiting" if manual else "accepted",
            "direction": "easier" if before and level < before.level else "harder",
            "candidate_id": candidate.id,
            "answer": f"level {level}",
            "instruction_after": fresh.instruction,
            "decided_step": proposal.step,
        }
    )


def _ladder(session: Session, outcome: TaskOutcome) -> Ladder:
    rule = LadderRule(**outcome.settings.adaptation.ladder.model_dump(exclude={"options"}))
    row = session.get(LadderRow, outcome.run_id)
    if row is None:
        return Ladder(rule)
    return Ladder(rule, high=row.high, counted=row.counted, correct=row.correct)


def _count(session: Session, outcome: TaskOutcome) -> Ladder:
    """The run's ladder with this group counted, stored."""
    played = session.get(LevelRow, outcome.task_id)
    level = played.level if played else None
    ladder = _ladder(session, outcome).after(level, outcome.successes, outcome.measured)
    stands = {"high": ladder.high, "counted": ladder.counted, "correct": ladder.correct}
    session.merge(LadderRow(run_id=outcome.run_id, pool_id=outcome.pool_id, **stands))
    return ladder


def _why_not(session: Session, task: Task) -> str:
    waiting = select(ProposalRow.id).where(
        ProposalRow.slot == task.slot, ProposalRow.state == "awaiting"
    )
    if session.scalar(waiting.limit(1)):
        return "another task of the slot waits for a person"
    if task.split != "train" or task.pinned or task.state != "active":
        what = "held out" if task.split != "train" else "pinned" if task.pinned else task.state
        return f"the task is {what}, so it is not replaced"
    return ""


CONTROLLERS.add("ladder", lambda parts: LadderController(parts.database, parts.family))
