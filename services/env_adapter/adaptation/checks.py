"""Which of several answers becomes the candidate: the first of which everything that must be true is proved.

In this order, each on record, before a single rollout is measured:

    readable                the answer is one of the choices
    applicable              the family can make a task of it
    follows_from_goal       parameters and instruction are what the family writes for this goal
    near_root               not further from the slot's root than `max_drift`
    new_in_slot             neither the parent nor any earlier version of the slot
    the family's own        at least `PROOFS`; what it does not prove itself is proved by playing:
      not_satisfied_at_reset  one empty response does not win
      solvable                the family's gold answers win, else a stronger policy does, at least once
      instruction_agrees      a stronger policy that reads nothing but the announcement wins, at least once
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.env_adapter.adaptation.ledger import Opening
from services.env_adapter.adaptation.rewriter import Choices
from services.env_adapter.adaptation.solver import Solver
from triforge.errors import InputError, TriforgeError
from triforge.rollout.adapting import PROOFS, drift, identity
from triforge.rollout.isolation import IsolatedEnvironment
from triforge.rollout.protocols import Environment, EnvironmentFamily, TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.types import AdaptSettings, CheckResult, Params, Task

_NO_SOLVER = "the family does not prove it and there is no solver (TRIFORGE_SOLVER_URL)"


@dataclass(frozen=True, slots=True)
class Screened:
    """The chosen candidate, if any, its distance from the root, and every check that was made on the way, in order."""

    draft: TaskDraft | None
    checks: tuple[CheckResult, ...]
    drift: float | None = None


class Checks:
    """Checks answers.

    Args:
        solver: proves by playing what a family does not prove; None leaves such candidates unproved, so not taken.
    """

    def __init__(self, solver: Solver | None = None) -> None:
        self._solver = solver

    async def screen(
        self,
        family: EnvironmentFamily,
        opening: Opening,
        answers: Sequence[str],
        offered: Choices,
        settings: AdaptSettings,
    ) -> Screened:
        """Check answers in order until one passes.

        Args:
            family: of the task.
            opening: the slot.
            answers: as the model wrote them; an answer given twice is checked once.
            offered: what could be answered.
            settings: `max_drift`, and how the solver plays.
        """
        checks: list[CheckResult] = []
        seen: dict[str, int] = {}
        for number, text in enumerate(answers, start=1):
            if text in seen:
                repeat = f"answer {number}: the same as answer {seen[text]}"
                checks.append(CheckResult(name="not_repeated", passed=False, detail=repeat))
                continue
            seen[text] = number
            draft, made = await asyncio.to_thread(
                _by_reading, family, opening, text, offered, settings.adaptation.max_drift
            )
            if draft is not None:
                made += await self._by_playing(family, opening.parent, draft, made, settings)
            checks += [
                check.model_copy(update={"detail": f"answer {number}: {check.detail}".rstrip(": ")})
                for check in made
            ]
            if draft is not None and all(check.passed for check in made):
                distance = drift(family, opening.root.params, draft.params)
                return Screened(draft, tuple(checks), distance)
        return Screened(None, tuple(checks))

    async def _by_playing(
        self,
        family: EnvironmentFamily,
        parent: Task,
        draft: TaskDraft,
        made: Sequence[CheckResult],
        settings: AdaptSettings,
    ) -> list[CheckResult]:
        """The proofs that the family did not give; none where it refused the candidate already."""
        missing = [name for name in PROOFS if name not in {check.name for check in made}]
        if not missing or not all(check.passed for check in made):
            return []
        task = parent.model_copy(
            update={
                "id": f"{parent.id}-candidate",
                "params": draft.params,
                "instruction": draft.instruction,
            }
        )
        found: list[CheckResult] = []
        try:
            if "not_satisfied_at_reset" in missing:
                found.append(await _not_satisfied(family, task, settings))
            if "solvable" in missing:
                gold = await _by_gold(family, task, settings)
                if gold is not None:
                    found.append(gold)
                    missing.remove("solvable")
            left = [name for name in missing if name != "not_satisfied_at_reset"]
            if left and all(check.passed for check in found):
                found += await self._by_solver(family, task, left, settings)
        except TriforgeError as error:
            found.append(CheckResult(name="playable", passed=False, detail=error.detail))
        return found

    async def _by_solver(
        self, family: EnvironmentFamily, task: Task, names: Sequence[str], settings: AdaptSettings
    ) -> list[CheckResult]:
        if self._solver is None:
            return [CheckResult(name=name, passed=False, detail=_NO_SOLVER) for name in names]
        solved = await self._solver.solve(
            lambda: _environment(family, settings),
            task,
            tries=settings.adaptation.solver_tries,
            max_steps=settings.env_adapter.max_steps,
            seed=derive_seed(task.id, identity(task.params)),
        )
        said = f"a stronger policy won {solved.wins} of {solved.measured} tries from the announcement alone"
        if solved.error:
            said += f"; of the others one says: {solved.error[:200]}"
        return [CheckResult(name=name, passed=solved.wins > 0, detail=said) for name in names]


def _by_reading(
    family: EnvironmentFamily, opening: Opening, text: str, offered: Choices, max_drift: float
) -> tuple[TaskDraft | None, list[CheckResult]]:
    answer, why = offered.parse(text)
    if answer is None:
        return None, [CheckResult(name="readable", passed=False, detail=why)]
    try:
        draft = family.apply_rewrite(opening.parent, answer)
    except InputError as error:
        return None, [CheckResult(name="applicable", passed=False, detail=error.detail)]
    checks = [_follows(family, draft), near_root(family, opening, draft.params, max_drift)]
    same = next((v for v in opening.earlier if identity(v.params) == identity(draft.params)), None)
    detail = "" if same is None else f"version {same.version} of this slot is the same task"
    checks.append(CheckResult(name="new_in_slot", passed=same is None, detail=detail))
    return draft, checks + list(family.check_rewrite(opening.parent, draft))


def _follows(family: EnvironmentFamily, draft: TaskDraft) -> CheckResult:
    """Whether the family, given the parameters alone, writes this very task."""
    try:
        own = family.validate(draft.params)
    except InputError as error:
        return CheckResult(name="follows_from_goal", passed=False, detail=error.detail)
    same = own.params == draft.params and own.instruction == draft.instruction
    detail = "" if same else f"the goal is announced as {own.instruction!r}"
    return CheckResult(name="follows_from_goal", passed=same, detail=detail)


def near_root(
    family: EnvironmentFamily, opening: Opening, params: Params, max_drift: float
) -> CheckResult:
    """Whether a task is near enough to the root of its slot."""
    distance = drift(family, opening.root.params, params)
    detail = f"{distance:.2f} from the root, allowed {max_drift:.2f} (adaptation.max_drift)"
    return CheckResult(name="near_root", passed=distance <= max_drift, detail=detail)


def _environment(family: EnvironmentFamily, settings: AdaptSettings) -> Environment:
    """A fresh environment that cannot stop this worker's event loop."""
    if getattr(family, "never_blocks", False):
        return family.make(settings.env_adapter.options)
    return IsolatedEnvironment(lambda: family.make(settings.env_adapter.options))


async def _not_satisfied(
    family: EnvironmentFamily, task: Task, settings: AdaptSettings
) -> CheckResult:
    environment = _environment(family, settings)
    try:
        await environment.reset(task, seed=0)
        result = await environment.step("")
    finally:
        await environment.close()
    won = result.done and result.success
    return CheckResult(name="not_satisfied_at_reset", passed=not won, detail="one empty response")


async def _by_gold(
    family: EnvironmentFamily, task: Task, settings: AdaptSettings
) -> CheckResult | None:
    gold = await asyncio.to_thread(family.gold, task, settings.env_adapter.options)
    if gold is None:
        return None
    environment, won = _environment(family, settings), False
    try:
        await environment.reset(task, seed=0)
        for response in gold:
            result = await environment.step(response)
            won = result.done and result.success
            if result.done:
                break
    finally:
        await environment.close()
    detail = f"the family's {len(gold)} gold answers win: {won}"
    return CheckResult(name="solvable", passed=won, detail=detail)
