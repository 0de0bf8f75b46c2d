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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from services.env_adapter.adaptation.measurement import OpenSlot
from services.env_adapter.adaptation.rewriter import Choices
from triforge.errors import InputError, TriforgeError
from triforge.rollout.adapting import PROOFS, drift, identity
from triforge.rollout.isolation import IsolatedEnvironment
from triforge.rollout.protocols import Environment, EnvironmentFamily, Generate, TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.types import (
    AdaptSettings,
    ChatMessage,
    CheckResult,
    GenerateRequest,
    Params,
    Sampling,
    Task,
)

_NO_SOLVER: Final = "the family does not prove it and there is no solver (TRIFORGE_SOLVER_URL)"
_EPISODE_S: Final = 300.0  # a longer episode of the solver is lost to the infrastructure
_TOGETHER: Final = 4  # episodes of the solver at the same time
_SAMPLING: Final = Sampling(max_new_tokens=1024, temperature=0.7)


@dataclass(frozen=True, slots=True)
class Solved:
    """How often a task was solved, of how many measured tries, and the first error of the others."""

    wins: int
    measured: int
    error: str = ""


class Solver:
    """Plays a candidate whose family has no planner, as proof that it can be solved.

    A stronger policy, any endpoint, gets nothing but what the task announces and plays it as plain chat. One success
    proves the task, and that its instruction is right. What the infrastructure loses counts neither way.
    """

    def __init__(self, generate: Generate) -> None:
        self._generate = generate

    async def solve(
        self,
        make: Callable[[], Environment],
        task: Task,
        *,
        tries: int,
        max_steps: int,
        seed: int,
    ) -> Solved:
        """Play a task up to `tries` times, each in a fresh environment, and stop at the first success."""
        wins = measured = 0
        error = ""
        for start in range(0, tries, _TOGETHER):
            batch = range(start, min(tries, start + _TOGETHER))
            found = await asyncio.gather(
                *(self._try(make(), task, max_steps, derive_seed(seed, index)) for index in batch)
            )
            for one in found:
                wins += one is True
                measured += isinstance(one, bool)
                error = error or (one if isinstance(one, str) else "")
            if wins:
                break
        return Solved(wins, measured, error)

    async def _try(self, environment: Environment, task: Task, steps: int, seed: int) -> bool | str:
        """Whether an episode was won, or what kept it from being measured."""
        try:
            async with asyncio.timeout(_EPISODE_S):
                return await self._play(environment, task, steps, seed)
        except TimeoutError:
            return f"an episode took longer than {_EPISODE_S:.0f} s"
        except TriforgeError as error:
            return error.detail
        finally:
            await environment.close()

    async def _play(self, environment: Environment, task: Task, steps: int, seed: int) -> bool:
        reset = await environment.reset(task, seed=seed)
        chat = [ChatMessage(role="system", content=reset.system)] if reset.system else []
        chat.append(ChatMessage(role="user", content=reset.observation.text))
        for index in range(steps):
            sampling = _SAMPLING.model_copy(update={"seed": derive_seed(seed, "step", index)})
            reply = await self._generate(GenerateRequest(messages=tuple(chat), sampling=sampling))
            said = reply.outputs[0].text
            result = await environment.step(said)
            if result.done:
                return result.success
            chat.append(ChatMessage(role="assistant", content=said))
            chat.append(ChatMessage(role="user", content=result.observation.text))
        return False


@dataclass(frozen=True, slots=True)
class Checked:
    """The chosen candidate, if any, every check that was made on the way, and the candidate's distance from the root."""

    candidate: TaskDraft | None
    checks: tuple[CheckResult, ...]
    drift: float | None = None


class CandidateChecks:
    """Checks answers.

    Args:
        solver: proves by playing what a family does not prove; None leaves such candidates unproved, so not taken.
    """

    def __init__(self, solver: Solver | None = None) -> None:
        self._solver = solver

    async def first_proved(
        self,
        family: EnvironmentFamily,
        slot: OpenSlot,
        answers: Sequence[str],
        offered: Choices,
        settings: AdaptSettings,
    ) -> Checked:
        """Check answers, as the model wrote them, in order until one passes; one given twice is checked once."""
        checks: list[CheckResult] = []
        seen: dict[str, int] = {}
        for number, text in enumerate(answers, start=1):
            if text in seen:
                repeat = f"answer {number}: the same as answer {seen[text]}"
                checks.append(CheckResult(name="not_repeated", passed=False, detail=repeat))
                continue
            seen[text] = number
            draft, made = await asyncio.to_thread(
                _by_reading, family, slot, text, offered, settings.adaptation.max_drift
            )
            if draft is not None:
                made += await self._by_playing(family, slot.parent, draft, made, settings)
            checks += [
                check.model_copy(update={"detail": f"answer {number}: {check.detail}".rstrip(": ")})
                for check in made
            ]
            if draft is not None and all(check.passed for check in made):
                distance = drift(family, slot.root.params, draft.params)
                return Checked(draft, tuple(checks), distance)
        return Checked(None, tuple(checks))

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
    family: EnvironmentFamily, slot: OpenSlot, text: str, offered: Choices, max_drift: float
) -> tuple[TaskDraft | None, list[CheckResult]]:
    answer, why = offered.parse(text)
    if answer is None:
        return None, [CheckResult(name="readable", passed=False, detail=why)]
    try:
        draft = family.apply_rewrite(slot.parent, answer)
    except InputError as error:
        return None, [CheckResult(name="applicable", passed=False, detail=error.detail)]
    checks = [_follows(family, draft), near_root(family, slot, draft.params, max_drift)]
    same = next((v for v in slot.earlier if identity(v.params) == identity(draft.params)), None)
    detail = "" if same is None else f"version {same.version} of this slot is the same task"
    checks.append(CheckResult(name="new_in_slot", passed=same is None, detail=detail))
    return draft, checks + list(family.check_rewrite(slot.parent, draft))


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
    family: EnvironmentFamily, slot: OpenSlot, params: Params, max_drift: float
) -> CheckResult:
    """Whether a task is near enough to the root of its slot."""
    distance = drift(family, slot.root.params, params)
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
