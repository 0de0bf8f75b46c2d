"""The choice of a candidate: of the answers that are proved, the one that changes the task least.

The checks, in this order and all on record, before any rollout measures the candidate:

    readable                the answer is one of the choices
    applicable              the family can make a task of it
    follows_from_goal       the family writes these parameters and this instruction for the goal
    near_root               the distance from the slot's root is at most `max_drift`
    new_in_slot             the task is neither the parent nor a candidate that the parent was measured with
    not_held_out            no held-out task of the pool asks the same
    the family's own        at least `PROOFS`; proofs that the family does not give are found by playing:
      not_satisfied_at_reset  one empty response does not win
      solvable                the family's gold answers win, else a stronger policy wins at least once
      instruction_agrees      a stronger policy that reads only the announcement wins at least once
    Without a stronger policy a family may leave some of these to the measurement (`Measured`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from services.env_adapter.adaptation.measurement import OpenSlot
from services.env_adapter.adaptation.rewriter import Choices
from services.env_adapter.adaptation.settings import AdaptSettings
from triforge.environments.tasks import asks_of
from triforge.errors import InputError, TriforgeError
from triforge.rollout.adapting import PROOFS, Measured, drift, identity
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.protocols import Environment, EnvironmentFamily, Generate, TaskDraft
from triforge.rollout.seeds import derive_seed
from triforge.types import ChatMessage, CheckResult, GenerateRequest, Params, Sampling, Task

_NO_SOLVER: Final = "the family does not prove it and there is no solver (TRIFORGE_SOLVER_URL)"
_LEFT: Final = "left to the measurement: a candidate is accepted only at a success rate in the band"
_EPISODE_S: Final = 300.0  # after which an episode of the solver is an infrastructure failure
_TOGETHER: Final = 4  # episodes of the solver at the same time
_SAMPLING: Final = Sampling(max_new_tokens=1024, temperature=0.7)

Make = Callable[[], Environment]


@dataclass(frozen=True, slots=True)
class Checked:
    """The chosen candidate, if any, all checks that were made, and the candidate's distance from the root."""

    candidate: TaskDraft | None
    checks: tuple[CheckResult, ...]
    drift: float | None = None


class CandidateChecks:
    """Checks answers. Without a solver, a proof that the family does not give fails."""

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
        """Check the raw answers of the model until one passes; a repeated answer is checked once.

        The smallest change comes first, after the answers that cannot be read.
        """

        def read() -> dict[str, tuple[TaskDraft | None, list[CheckResult], float]]:
            return {text: _draft_of(family, slot.parent, text, offered) for text in answers}

        checks: list[CheckResult] = []
        drafts = await asyncio.to_thread(read)
        numbered = enumerate(answers, start=1)
        for number, text in sorted(numbered, key=lambda pair: drafts[pair[1]][2]):
            draft, made, _ = drafts[text]
            if (first := answers.index(text) + 1) < number:
                draft, made = None, [_check("not_repeated", f"the same as answer {first}")]
            if draft is not None:
                made = await asyncio.to_thread(_by_reading, family, slot, draft, settings)
                if _all_passed(made):
                    made += await self._by_playing(family, slot.parent, draft, made, settings)
            checks += [
                check.model_copy(update={"detail": f"answer {number}: {check.detail}".rstrip(": ")})
                for check in made
            ]
            if draft is not None and _all_passed(made):
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
        """Prove what the family did not."""
        options = settings.env_adapter.options
        changed = {"params": draft.params, "instruction": draft.instruction}
        task = parent.model_copy(update={"id": f"{parent.id}-candidate", **changed})
        missing = [name for name in PROOFS if name not in {check.name for check in made}]
        left = family.measured if isinstance(family, Measured) and not self._solver else ()
        checks: list[CheckResult] = []

        def make() -> Environment:
            return fresh_environment(family, options)

        try:
            if "not_satisfied_at_reset" in missing and "not_satisfied_at_reset" not in left:
                won = await _wins(make(), task, [""])
                checks.append(_check("not_satisfied_at_reset", "one empty response", not won))
                missing.remove("not_satisfied_at_reset")
            if "solvable" in missing:
                gold = await asyncio.to_thread(family.gold, task, options)
                if gold is not None:
                    won = await _wins(make(), task, gold)
                    detail = f"the family's {len(gold)} gold answers win: {won}"
                    checks.append(_check("solvable", detail, won))
                    missing.remove("solvable")
            checks += [_check(name, _LEFT, True) for name in missing if name in left]
            missing = [name for name in missing if name not in left]
            if missing and _all_passed(checks):
                checks += await self._by_solver(make, task, missing, settings)
        except TriforgeError as error:
            checks.append(_check("playable", error.detail))
        return checks

    async def _by_solver(
        self, make: Make, task: Task, names: Sequence[str], settings: AdaptSettings
    ) -> list[CheckResult]:
        if self._solver is None:
            return [_check(name, _NO_SOLVER) for name in names]
        tries = await self._solver.solve(
            make,
            task,
            tries=settings.adaptation.solver_tries,
            max_steps=settings.env_adapter.max_steps,
            seed=derive_seed(task.id, identity(task.params)),
        )
        errors = [one for one in tries if isinstance(one, str)]
        wins = tries.count(True)
        detail = f"a stronger policy won {wins} of {len(tries) - len(errors)} tries from the announcement alone"
        if errors:
            detail += f"; {len(errors)} further ones failed, the first: {errors[0][:200]}"
        return [_check(name, detail, wins > 0) for name in names]


class Solver:
    """Plays a candidate as proof that it can be solved, where the family has no planner.

    A stronger policy (any endpoint) reads only the announcement and plays the task as plain chat. One success proves
    the task and its instruction. Infrastructure failures count neither way.
    """

    def __init__(self, generate: Generate) -> None:
        self._generate = generate

    async def solve(
        self, make: Make, task: Task, *, tries: int, max_steps: int, seed: int
    ) -> list[bool | str]:
        """Play up to `tries` times until a success; return for each try whether it was won, or its failure."""
        results: list[bool | str] = []
        while len(results) < tries and True not in results:
            batch = range(len(results), min(tries, len(results) + _TOGETHER))
            seeds = [derive_seed(seed, index) for index in batch]
            results += await asyncio.gather(*(self._try(make(), task, max_steps, s) for s in seeds))
        return results

    async def _try(self, environment: Environment, task: Task, steps: int, seed: int) -> bool | str:
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
            text = reply.outputs[0].text
            result = await environment.step(text)
            if result.done:
                return bool(result.success)
            chat.append(ChatMessage(role="assistant", content=text))
            chat.append(ChatMessage(role="user", content=result.observation.text))
        return False


def near_root(
    family: EnvironmentFamily, slot: OpenSlot, params: Params, max_drift: float
) -> CheckResult:
    """Check the distance of a task from the root of its slot."""
    distance = drift(family, slot.root.params, params)
    detail = f"{distance:.2f} from the root, allowed {max_drift:.2f} (adaptation.max_drift)"
    return _check("near_root", detail, distance <= max_drift)


def _draft_of(
    family: EnvironmentFamily, parent: Task, text: str, offered: Choices
) -> tuple[TaskDraft | None, list[CheckResult], float]:
    """Return the task of an answer, or the check that fails; and its distance from the parent, 0 without a task."""
    answer, problem = offered.parse(text)
    if answer is None:
        return None, [_check("readable", problem)], 0.0
    try:
        draft = family.apply_rewrite(parent, answer)
    except InputError as error:
        return None, [_check("applicable", error.detail)], 0.0
    return draft, [], drift(family, parent.params, draft.params)


def _by_reading(
    family: EnvironmentFamily, slot: OpenSlot, draft: TaskDraft, settings: AdaptSettings
) -> list[CheckResult]:
    """Make all checks that need no episode."""
    asks = asks_of(family, settings.env_adapter.options)
    known_elsewhere = asks(draft) in map(asks, slot.heldout)
    same = slot.tried.get(identity(draft.params))
    known = "" if same is None else f"version {same.version} of this slot is the same task"
    return [
        _follows(family, draft),
        near_root(family, slot, draft.params, settings.adaptation.max_drift),
        _check("new_in_slot", known, same is None),
        _check(
            "not_held_out", "a held-out task asks the same" * known_elsewhere, not known_elsewhere
        ),
        *family.check_rewrite(slot.parent, draft),
    ]


def _follows(family: EnvironmentFamily, draft: TaskDraft) -> CheckResult:
    """Check that the family writes this very task for its parameters."""
    try:
        own = family.validate(draft.params)
    except InputError as error:
        return _check("follows_from_goal", error.detail)
    same = own.params == draft.params and own.instruction == draft.instruction
    detail = "" if same else f"the goal is announced as {own.instruction!r}"
    return _check("follows_from_goal", detail, same)


async def _wins(environment: Environment, task: Task, responses: Sequence[str]) -> bool:
    """Play the responses and return whether the episode ends with success."""
    try:
        await environment.reset(task, seed=0)
        for response in responses:
            result = await environment.step(response)
            if result.done:
                return bool(result.success)
        return False
    finally:
        await environment.close()


def _check(name: str, detail: str, passed: bool = False) -> CheckResult:
    return CheckResult(name=name, passed=passed, detail=detail)


def _all_passed(checks: Sequence[CheckResult]) -> bool:
    return all(check.passed for check in checks)
