"""From a slot that should change to a proposal: menu, critic, rewriter, checks. Asks models, touches no database."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from services.env_adapter.adaptation.checks import Checks, near_root
from services.env_adapter.adaptation.critic import Critic, choose
from services.env_adapter.adaptation.ledger import Opening, proposal_id
from services.env_adapter.adaptation.rewriter import (
    Answer,
    Choices,
    Form,
    Rewriter,
    build_prompt,
    choices,
)
from services.env_adapter.adaptation.solver import Solver
from triforge.errors import InputError, PolicyError, UnavailableError
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import EnvironmentFamily, Generate, RewriteMenu, TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.types import Direction, Proposal, TaskOutcome

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_ATTEMPTS = 3  # calls of a model that fails before the proposal is given up


@dataclass(frozen=True, slots=True)
class Drafted:
    """A proposal and its candidate; without one it is invalid and says why."""

    proposal: Proposal
    draft: TaskDraft | None


class Drafter:
    """Drafts proposals.

    Args:
        generate: the model that rewrites.
        family: finds an environment family by name.
        critic: the model that criticises; the same one by default.
        solver: proves what a family does not prove itself.
        form: how the rewriter is held to its choices, see `Rewriter`.
        backoff_s: seconds before the second call of a model that failed; doubles with each further one.
    """

    def __init__(
        self,
        generate: Generate,
        family: Callable[[str], EnvironmentFamily],
        *,
        critic: Generate | None = None,
        solver: Solver | None = None,
        form: Form = "regex",
        backoff_s: float = 2.0,
    ) -> None:
        self._critic = Critic(critic or generate)
        self._rewriter = Rewriter(generate, form=form)
        self._checks = Checks(solver)
        self._family = family
        self._backoff_s = backoff_s

    async def draft(self, outcome: TaskOutcome, direction: Direction, opening: Opening) -> Drafted:
        """Draft one proposal. What goes wrong makes it an invalid one with the reason, never an error."""
        proposal = _begin(outcome, direction, opening)
        parent = opening.parent
        if proposal.null_control:
            return Drafted(
                proposal,
                TaskDraft(params=parent.params, instruction=parent.instruction, kind=parent.kind),
            )
        found: Drafted | str
        try:
            menu, offered, found = await asyncio.to_thread(
                self._offer, proposal, opening, outcome.settings.adaptation.max_drift
            )
            if offered:
                found = await self._answered(proposal, outcome, opening, menu, offered)
        except Exception as error:  # noqa: BLE001 (a family may raise anything, and would the next time, too)
            _log.exception("%s: drafting for %s", proposal.id, parent.id)
            found = f"drafting raised {type(error).__name__}: {error}"
        if isinstance(found, Drafted):
            return found
        return Drafted(proposal.model_copy(update={"reason": found}), None)

    def _offer(
        self, proposal: Proposal, opening: Opening, max_drift: float
    ) -> tuple[RewriteMenu, Choices, str]:
        """The menu, what of it may be answered, and why nothing may be if so."""
        family, parent = self._family(opening.parent.family), opening.parent
        menu = family.rewrite_menu(parent, proposal.direction)
        had = {identity(version.params) for version in opening.earlier}
        refused: Counter[str] = Counter()

        def keep(answer: Answer) -> bool:
            try:
                params = family.apply_rewrite(parent, answer).params
            except InputError:
                refused["impossible"] += 1
                return False
            if identity(params) in had:
                refused["played by this slot before"] += 1
                return False
            if not near_root(family, opening, params, max_drift).passed:
                refused[f"further than {max_drift} from the root (adaptation.max_drift)"] += 1
                return False
            return True

        offered = choices(menu, keep, seed=derive_seed(proposal.id, "choices"))
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        left = f"nothing {proposal.direction} is left to offer for this slot"
        return menu, offered, f"{left}: {why}" if why else left

    async def _answered(
        self,
        proposal: Proposal,
        outcome: TaskOutcome,
        opening: Opening,
        menu: RewriteMenu,
        offered: Choices,
    ) -> Drafted | str:
        """What the models make of it in time, or why they make nothing."""
        deadline = outcome.settings.adaptation.deadline_s
        try:
            async with asyncio.timeout(deadline):
                return await self._ask(proposal, outcome, opening, menu, offered)
        except TimeoutError:
            return f"no candidate within {deadline:.0f} s (adaptation.deadline_s)"
        except (PolicyError, UnavailableError, InputError) as error:
            return f"the rewriter's model gave no answer: {error.detail}"

    async def _ask(
        self,
        proposal: Proposal,
        outcome: TaskOutcome,
        opening: Opening,
        menu: RewriteMenu,
        offered: Choices,
    ) -> Drafted:
        settings, parent, direction = outcome.settings, opening.parent, proposal.direction
        notes = await self._patiently(
            lambda: self._critic.summarise(
                choose(outcome.notes, direction, count=settings.adaptation.notes),
                parent.instruction,
                direction,
                tokens=settings.adaptation.critic_tokens,
                budget=settings.adaptation.critic_budget,
                seed=derive_seed(proposal.id, "critic"),
            )
        )
        prompt = build_prompt(
            menu,
            offered,
            direction=direction,
            accuracy=proposal.trigger_accuracy,
            notes=notes,
            root=opening.root.instruction,
        )
        answers = await self._patiently(
            lambda: self._rewriter.ask(
                prompt,
                offered,
                sampling=settings.sampling,
                candidates=settings.adaptation.candidates,
                seed=derive_seed(proposal.id, "rewriter"),
            )
        )
        screened = await self._checks.screen(
            self._family(parent.family), opening, answers, offered, settings
        )
        return Drafted(
            proposal.model_copy(
                update={
                    "critic": "\n".join(notes),
                    "prompt": prompt,
                    "answer": "\n".join(answers),
                    "checks": screened.checks,
                    "drift": screened.drift,
                    "reason": "" if screened.draft else "no answer passed all checks",
                }
            ),
            screened.draft,
        )

    async def _patiently(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call of the model while it fails for reasons that may pass."""
        for attempt in range(_ATTEMPTS - 1):
            try:
                return await call()
            except (PolicyError, UnavailableError) as error:
                pause = max(self._backoff_s * 2**attempt, error.retry_after_s or 0.0)
                _log.warning("the rewriter's model again in %.1f s: %s", pause, error.detail)
            await asyncio.sleep(pause)
        return await call()


def is_null_control(name: str, share: float) -> bool:
    """Whether the proposal of that id is one of the share that measures false acceptance; repeated, the same."""
    return derive_seed(name, "null control") < share * 2**31


def _begin(outcome: TaskOutcome, direction: Direction, opening: Opening) -> Proposal:
    name, parent = proposal_id(outcome.group_id), opening.parent
    return Proposal(
        id=name,
        pool_id=parent.pool_id,
        slot=parent.slot,
        parent_id=parent.id,
        candidate_id=None,
        direction=direction,
        state="invalid",
        run_id=outcome.run_id,
        step=outcome.step,
        trigger_accuracy=outcome.successes / outcome.measured,
        critic="",
        prompt="",
        answer="",
        instruction_before=parent.instruction,
        null_control=is_null_control(name, outcome.settings.adaptation.null_control),
    )
