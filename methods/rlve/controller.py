"""The controller: every training group's slot goes on with a fresh task from a window of difficulty levels.

A run has a ladder a kind of task, or one of all tasks where the family names no kinds (`triforge.rollout.adapting`). The
family's generator makes the task: its kind drawn evenly from all, its level evenly from the kind's window. Groups of the
top level move the window of their kind (`methods.rlve.ladder`). The count, the move and the new version are one
transaction, and the id of its proposal follows from the group: a repeated delivery finds it and changes nothing. A run's
ladders are its own and go on where they stood; tasks that no ladder made (a pool's first ones) have no level and count
nothing.

Where the pool's approval is "manual", the fresh task waits for a person and the slot plays on as it is, with no further
offer meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from methods.rlve.ladder import Ladder
from methods.rlve.options import RlveOptions
from services.env_adapter.adaptation.controllers import ControllerParts
from services.env_adapter.adaptation.measurement import Closed, new_proposal, proposal_id
from services.env_adapter.adaptation.settings import RunOutcome
from services.env_adapter.pools.rows import lock_pool, new_row, task_in
from services.env_adapter.pools.slots import held_out, replace, successor, withdraw
from triforge.environments.tasks import asks_of
from triforge.errors import InputError
from triforge.rollout.adapting import Kinds, Levels
from triforge.rollout.protocols import TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.store.tables import NoteRow, PoolRow, ProposalRow, TaskRow
from triforge.types import Proposal, Task

_DRAWS: Final = 8  # of level and seed before the slot is left as it is
_NAME: Final = "rlve"
_MADE = Closed("this group led to a task already")


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A task from a window."""

    kind: str
    level: int
    draft: TaskDraft


class LadderController:
    """Replaces tasks."""

    def __init__(self, parts: ControllerParts) -> None:
        self._database, self._family = parts.database, parts.family
        # levels that the generator cannot make
        self._refused: set[tuple[str, str, int, str]] = set()
        self._heldout: dict[str, tuple[TaskDraft, ...]] = {}  # by pool; they never change

    async def respond(self, outcome: RunOutcome) -> Proposal | Closed:
        """Make the slot's next task. All measured groups count, also those that train nothing."""
        if outcome.purpose != "train":
            return Closed("not a training group")
        return await asyncio.to_thread(self._respond, outcome)

    def _respond(self, outcome: RunOutcome) -> Proposal | Closed:
        name = proposal_id(outcome.group_id)
        with self._database.read() as session:
            if session.get(ProposalRow, name) is not None:
                return _MADE
            task = task_in(session, outcome.task_id)
            ladders = _ladders(session, outcome)
            if task.pool_id not in self._heldout:
                self._heldout[task.pool_id] = held_out(session, task.pool_id)
        fresh, refused = self._draw(name, task, ladders, outcome)
        with self._database.write() as session:
            lock_pool(session, outcome.pool_id)
            if session.get(ProposalRow, name) is not None:
                return _MADE
            window = _count(session, outcome)
            task = task_in(session, outcome.task_id)
            why_not = _why_not(session, task) or refused
            proposal = new_proposal(
                outcome,
                task,
                direction="harder",
                controller=outcome.settings.adaptation.controller,
                reason=why_not or window,
            )
            if fresh is not None and not why_not:
                proposal = _take(session, proposal, fresh)
            session.add(new_row(proposal))
            return proposal

    def _draw(
        self, name: str, task: Task, ladders: dict[str, Ladder], outcome: RunOutcome
    ) -> tuple[_Fresh | None, str]:
        """Return a task that no held-out one asks, or why there is none. A level that the generator refuses is not drawn again."""
        family, section = self._family(task.family), _options(outcome)
        if not isinstance(family, Levels):
            return None, f"the environment {task.family!r} has no difficulty levels"
        try:
            kinds = family.kinds(section.options) if isinstance(family, Kinds) else ()
        except InputError as error:
            return None, error.detail
        start, why = Ladder(section), ""
        asks = asks_of(family, outcome.settings.env_adapter.options)
        for number in range(_DRAWS):
            seed, kind, options = derive_seed(name, "ladder", number), "", section.options
            if kinds and isinstance(family, Kinds):
                kind = kinds[derive_seed(name, "kind", number) % len(kinds)]
                options = family.of_kind(kind, options)
            ladder = ladders.get(kind, start)
            level = ladder.level(seed)
            why = why or f"no level of {ladder.low} to {ladder.high} can be made"
            key = (task.family, kind, level, repr(section.options))
            if key in self._refused:
                continue
            try:
                (params,) = family.generate(
                    count=1, seed=seed, options=family.at_level(level, options)
                )
                draft = family.validate(params)
                if asks(draft) not in map(asks, self._heldout[task.pool_id]):
                    return _Fresh(kind, level, draft), ""
                why = f"level {level}: a held-out task asks the same"
            except InputError as error:
                self._refused.add(key)
                why = f"level {level}: {error.detail}"
        return None, why


def _take(session: Session, proposal: Proposal, fresh: _Fresh) -> Proposal:
    parent = session.get_one(TaskRow, proposal.parent_id)
    kind, level = _made(session, parent.id)
    easier = level is not None and kind == fresh.kind and fresh.level < level
    manual = session.get_one(PoolRow, parent.pool_id).approval == "manual"
    withdraw(session, ProposalRow.slot == parent.slot, "the ladder made another task")
    candidate = successor(session, parent, fresh.draft, state="awaiting" if manual else "pending")
    session.add(candidate)
    session.flush()
    if not manual:
        replace(session, parent, candidate)
    made = {"kind": fresh.kind, "level": fresh.level}
    session.add(NoteRow(method=_NAME, subject=candidate.id, key="", value=made))
    return proposal.model_copy(
        update={
            "state": "awaiting" if manual else "accepted",
            "direction": "easier" if easier else "harder",
            "candidate_id": candidate.id,
            "answer": f"level {fresh.level}{_of(fresh.kind)}",
            "instruction_after": fresh.draft.instruction,
            "decided_step": proposal.step,
        }
    )


def _options(outcome: RunOutcome) -> RlveOptions:
    options = outcome.settings.controller_options
    return options if isinstance(options, RlveOptions) else RlveOptions()


def _of(kind: str) -> str:
    return f" of {kind}" if kind else ""


def _ladders(session: Session, outcome: RunOutcome) -> dict[str, Ladder]:
    """Return the run's ladders by kind, those that counted a group."""
    rule = _options(outcome)
    notes = select(NoteRow).where(NoteRow.method == _NAME, NoteRow.subject == outcome.run_id)
    return {note.key: Ladder(rule, **note.value) for note in session.scalars(notes)}


def _made(session: Session, task_id: str) -> tuple[str, int | None]:
    """Return the kind and level of a task; no level of a task that no ladder made."""
    note = session.get(NoteRow, (_NAME, task_id, ""))
    return (note.value["kind"], note.value["level"]) if note else ("", None)


def _count(session: Session, outcome: RunOutcome) -> str:
    """Count this group on the ladder of its kind, store the ladder, and describe it."""
    kind, level = _made(session, outcome.task_id)
    before = _ladders(session, outcome).get(kind, Ladder(_options(outcome)))
    ladder = before.after(level, outcome.successes, outcome.measured)
    if level is None:
        return "ladder: no ladder made the task, so its group counts nothing"
    stands = {"high": ladder.high, "counted": ladder.counted, "correct": ladder.correct}
    session.merge(NoteRow(method=_NAME, subject=outcome.run_id, key=kind, value=stands))
    return (
        f"ladder: the window{_of(kind)} is {ladder.low} to {ladder.high}, "
        f"{ladder.correct} of {ladder.counted} at its top"
    )


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
