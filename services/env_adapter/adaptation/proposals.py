"""The writing of a proposal: menu, diagnosis, rewriter, checks. It asks models and uses no database."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from services.env_adapter.adaptation.candidates import CandidateChecks, Solver, near_root
from services.env_adapter.adaptation.diagnosis import Diagnosis, missed_sub_goal, with_success
from services.env_adapter.adaptation.measurement import OpenSlot, new_proposal, proposal_id
from services.env_adapter.adaptation.rewriter import (
    Answer,
    Choices,
    Form,
    Rewriter,
    build_prompt,
    choices,
)
from services.env_adapter.adaptation.settings import RunOutcome
from triforge.errors import InputError, PolicyError, UnavailableError
from triforge.retry import RetryPolicy, retry
from triforge.rollout.adapting import SubGoals, identity
from triforge.rollout.protocols import EnvironmentFamily, Generate, RewriteMenu, TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.types import Direction, Params, Proposal, Task

_log = logging.getLogger(__name__)

MODEL_RETRY: Final = RetryPolicy(
    first_s=2.0, retries=2, retry_on=lambda error: isinstance(error, PolicyError | UnavailableError)
)

GOAL_TRIES: Final = 3  # rejected rewrites with the same goal, before another goal is tried

Written = tuple[
    Proposal, TaskDraft | None
]  # a proposal and its candidate; invalid without a candidate


class ProposalWriter:
    """Writes proposals.

    `generate` rewrites. `diagnoses` explains attempts where a model is asked (the same by default), or `diagnosis` in its
    place. `solver` proves what a family does not prove itself. `retry_policy` is for a model that does not answer.
    """

    def __init__(
        self,
        generate: Generate,
        family: Callable[[str], EnvironmentFamily],
        *,
        diagnoses: Generate | None = None,
        diagnosis: Diagnosis | None = None,
        solver: Solver | None = None,
        form: Form = "regex",
        retry_policy: RetryPolicy = MODEL_RETRY,
    ) -> None:
        self._diagnosis = diagnosis or Diagnosis(diagnoses or generate)
        self._rewriter = Rewriter(generate, form=form)
        self._checks = CandidateChecks(solver)
        self._family = family
        self._retry = retry_policy

    async def write(self, outcome: RunOutcome, direction: Direction, slot: OpenSlot) -> Written:
        """Write a proposal; a failure makes it invalid, with the reason, and never raises."""
        parent, settings = slot.parent, outcome.settings.adaptation
        null_control = is_null_control(proposal_id(outcome.group_id), settings.null_control)
        proposal = new_proposal(outcome, parent, direction=direction, null_control=null_control)
        if null_control:
            same = TaskDraft(params=parent.params, instruction=parent.instruction, kind=parent.kind)
            return proposal, same
        try:
            parent, menu, offered, problem = await asyncio.to_thread(
                self._offer, proposal, outcome, slot
            )
            if offered:
                known = replace(slot, parent=parent)
                try:
                    async with asyncio.timeout(settings.deadline_s):
                        return await self._ask(proposal, outcome, known, menu, offered)
                except TimeoutError:
                    problem = (
                        f"no candidate within {settings.deadline_s:.0f} s (adaptation.deadline_s)"
                    )
                except (PolicyError, UnavailableError, InputError) as error:
                    problem = f"the rewriter's model gave no answer: {error.detail}"
        except Exception as error:  # noqa: BLE001 (a family may raise anything, and would again)
            _log.exception("%s: writing a proposal for %s", proposal.id, parent.id)
            problem = f"writing the proposal raised {type(error).__name__}: {error}"
        return proposal.model_copy(update={"reason": problem}), None

    def _offer(
        self, proposal: Proposal, outcome: RunOutcome, slot: OpenSlot
    ) -> tuple[Task, RewriteMenu, Choices, str]:
        """Return the parent, the menu, the choices of it that may be answered, and why there are none.

        An easier task of the same goal leaves the sub-goal that was missed to the agent; it may begin inside the shortest success.
        """
        family, parent = self._family(slot.parent.family), slot.parent
        settings, options = outcome.settings.adaptation, outcome.settings.env_adapter.options
        missed = None
        if proposal.direction == "easier":
            missed = missed_sub_goal(family, parent, outcome.notes, options)
            parent = with_success(family, parent, outcome.notes)
        menu = family.rewrite_menu(parent, proposal.direction)
        tried = slot.tried
        refused: Counter[str] = Counter()

        def draft_of(answer: Answer) -> TaskDraft | None:
            try:
                draft = family.apply_rewrite(parent, answer)
            except InputError:
                refused["impossible"] += 1
                return None
            if identity(draft.params) in tried:
                refused["tried against this task before"] += 1
                return None
            if not near_root(family, slot, draft.params, settings.max_drift).passed:
                far = f"further than {settings.max_drift} from the root (adaptation.max_drift)"
                refused[far] += 1
                return None
            if draft.kind == parent.kind and not leaves(family, parent, draft, missed, options):
                refused["without the sub-goal that was missed"] += 1
                return None
            return draft

        def keeps_goal(answer: Answer) -> bool:
            draft = draft_of(answer)
            return draft is not None and draft.kind == parent.kind

        offered, seed = Choices({}), derive_seed(proposal.id, "choices")
        if settings.keep_goal and not goal_is_exhausted(slot):
            offered = choices(menu, keeps_goal, seed=seed)
        if not offered:
            refused.clear()
            offered = choices(menu, lambda answer: draft_of(answer) is not None, seed=seed)
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        problem = f"no {proposal.direction} task is left to offer for this slot"
        return parent, menu, offered, f"{problem}: {reasons}" if reasons else problem

    async def _ask(
        self,
        proposal: Proposal,
        outcome: RunOutcome,
        slot: OpenSlot,
        menu: RewriteMenu,
        offered: Choices,
    ) -> Written:
        """Ask the models for a diagnosis and answers, and take the first answer that passes the checks."""
        settings, parent, direction = outcome.settings, slot.parent, proposal.direction
        family = self._family(parent.family)
        notes = await retry(
            lambda: self._diagnosis.explain(
                family,
                parent,
                outcome.notes,
                direction,
                settings,
                derive_seed(proposal.id, "diagnosis"),
            ),
            self._retry,
        )
        prompt = build_prompt(
            menu,
            offered,
            direction=direction,
            accuracy=proposal.trigger_accuracy,
            notes=notes,
            root=slot.root.instruction,
        )
        answers = await retry(
            lambda: self._rewriter.ask(
                prompt,
                offered,
                sampling=settings.sampling,
                candidates=settings.adaptation.candidates,
                seed=derive_seed(proposal.id, "rewriter"),
            ),
            self._retry,
        )
        checked = await self._checks.first_proved(family, slot, answers, offered, settings)
        fields = {
            "diagnosis": "\n".join(notes),
            "prompt": prompt,
            "answer": "\n".join(answers),
            "checks": checked.checks,
            "drift": checked.drift,
            "reason": "" if checked.candidate else "no answer passed all checks",
        }
        return proposal.model_copy(update=fields), checked.candidate


def leaves(
    family: EnvironmentFamily, parent: Task, draft: TaskDraft, missed: int | None, options: Params
) -> bool:
    """Return whether an agent still has to reach a sub-goal in a rewrite: it is one of the rewrite's, and not reached at reset."""
    if missed is None or not isinstance(family, SubGoals):
        return True
    changed = {"params": draft.params, "instruction": draft.instruction}
    goals = family.sub_goals(parent.model_copy(update=changed), (), options)
    return missed < len(goals) and goals[missed].reached is None


def goal_is_exhausted(slot: OpenSlot) -> bool:
    """Return whether `GOAL_TRIES` rewrites of the parent with its kind were measured and rejected."""
    parent = slot.parent
    tried = (v for v in slot.earlier if v.version > parent.version and v.kind == parent.kind)
    changed = (v for v in tried if v.params != parent.params)  # a null control does not count
    return sum(version.state == "rejected" for version in changed) >= GOAL_TRIES


def is_null_control(name: str, share: float) -> bool:
    """Return whether a proposal is one of the share that measures false acceptance; the id decides it."""
    return derive_seed(name, "null control") < share * 2**31
