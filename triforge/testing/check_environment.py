"""The conformance suite of environment families: run it on your adapter, it says which promise is broken and how.

    results = await check_environment(family, options={"wording": "terse"})
    require(results)

It plays real episodes and needs no model and no service. A check that a family gives nothing to look at passes, and its
detail says that it does not apply; `triforge env check NAME` prints all of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from triforge.errors import EnvError, InputError
from triforge.rollout.adapting import Drift, Levels
from triforge.rollout.observed import kept_step, whole
from triforge.rollout.protocols import (
    Environment,
    EnvironmentFamily,
    Observation,
    Reset,
    StepResult,
    TaskDraft,
)
from triforge.rollout.scoring import outcome, with_threshold
from triforge.types import CheckResult, Direction, Params, Task

NOT_APPLICABLE: Final = "does not apply: "
"""How the detail of a check begins that had nothing to look at."""
NONSENSE: Final = "no such action, certainly"
DIRECTIONS: Final[tuple[Direction, ...]] = ("harder", "easier")
REWRITES_TRIED: Final = 8
LEVELS_TRIED: Final = 3
T = TypeVar("T")


class _BrokenError(Exception):
    """A promise of the contract does not hold; the text says which and what was seen."""


class _NothingToCheckError(Exception):
    """The family does not have what a check is about; the text says what."""


def _expect(condition: bool, sentence: str) -> None:
    if not condition:
        raise _BrokenError(sentence)


@dataclass(slots=True)
class _Timed(Generic[T]):
    """Awaits a coroutine and notes the longest time it kept the event loop between two awaits, in seconds."""

    inner: Coroutine[Any, Any, T]
    longest: float = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        value: Any = None
        while True:
            begun = time.perf_counter()
            try:
                future = self.inner.send(value)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.longest = max(self.longest, time.perf_counter() - begun)
            value = yield future


@dataclass(slots=True)
class _Suite:
    family: EnvironmentFamily
    options: Params
    generator_options: Params
    seed: int
    count: int
    max_steps: int
    block_limit_s: float
    deadline_s: float
    rows: Sequence[Params] = ()
    tasks: list[Task] = field(default_factory=list)

    # ---- playing -----------------------------------------------------------------------------------------------

    async def call(self, what: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await one call within the deadline; it must not hold the event loop."""
        timed = _Timed(coroutine)
        try:
            async with asyncio.timeout(self.deadline_s):
                result = await timed
        except TimeoutError:
            raise _BrokenError(f"{what} took longer than {self.deadline_s} s") from None
        _expect(
            timed.longest <= self.block_limit_s,
            f"{what} held the event loop for {timed.longest:.3f} s, allowed are {self.block_limit_s} s; "
            "await the work or move it to a thread",
        )
        return result

    async def play(self, task: Task, responses: Sequence[str]) -> tuple[Reset, list[StepResult]]:
        """A whole episode: the responses in turn, until done or until they run out."""
        environment = with_threshold(self.family.make(self.options), self.family, self.options)
        try:
            reset = await self.call("reset", environment.reset(task, seed=self.seed))
            results: list[StepResult] = []
            for response in responses:
                results.append(await self.call("step", environment.step(response)))
                if results[-1].done:
                    break
            return reset, results
        finally:
            await self.call("close", environment.close())

    def task(self, draft: TaskDraft, index: int) -> Task:
        """A stored task as env_adapter would make it."""
        name = f"check-{index}"
        return Task(
            id=name,
            pool_id="check",
            slot=name,
            family=self.family.name,
            instruction=draft.instruction,
            params=draft.params,
        )

    # ---- checks ------------------------------------------------------------------------------------------------

    async def generate_is_deterministic(self) -> None:
        if self.rows:
            drafts = [self.family.validate(params) for params in self.rows]
            self.tasks = [self.task(draft, index) for index, draft in enumerate(drafts)]
            raise _NothingToCheckError("the tasks were given, not generated")
        make = partial(self.family.generate, count=self.count, seed=self.seed)
        first, again = (make(options=self.generator_options) for _ in range(2))
        _expect(len(first) == self.count, f"asked for {self.count} tasks, got {len(first)}")
        _expect(first == again, "the same seed and options gave other tasks the second time")
        for index, params in enumerate(first):
            draft = self.family.validate(params)
            stored = draft.params
            _expect(json.loads(json.dumps(stored)) == stored, f"params are not JSON: {stored!r}")
            self.tasks.append(self.task(draft, index))

    async def validate_normalises(self) -> None:
        for task in self.tasks:
            draft = self.family.validate(task.params)
            _expect(draft.params == task.params, "validating validated params changes them")
            _expect(draft.instruction == task.instruction, "the same params gave two instructions")
            _expect(bool(draft.instruction.strip()), "the instruction is empty")

    async def unknown_fields_are_refused(self) -> None:
        strange: Params = {"no_such_field": 1}
        validated: Params = {**self.tasks[0].params, **strange}
        options: Params = {**self.options, **strange}
        generate = partial(self.family.generate, count=1, seed=0)
        _refuses("validate", lambda: self.family.validate(validated))
        _refuses("make", lambda: self.family.make(options))
        _refuses("generate", lambda: generate(options={**self.generator_options, **strange}))

    async def first_observation_announces_the_task(self) -> None:
        for task in self.tasks:
            reset, _ = await self.play(task, ())
            _expect_text(reset.observation)
            _expect(isinstance(reset.system, str), f"the system message is {reset.system!r}")
            _expect(
                task.instruction in reset.observation.text,
                f"the first observation does not contain the instruction {task.instruction!r}",
            )

    async def same_seed_same_episode(self) -> None:
        for task in self.tasks:
            responses = [NONSENSE, *(self.family.gold(task, self.options) or ()), NONSENSE]
            first, again = await self.play(task, responses), await self.play(task, responses)
            _expect(first == again, f"task {task.id} went differently the second time")

    async def gold_answers_succeed(self) -> None:
        known = [await self.has_gold(task) for task in self.tasks]
        if not any(known):
            raise _NothingToCheckError("`gold` knows an answer to none of the tasks")

    async def has_gold(self, task: Task) -> bool:
        """Whether there are gold answers; those that there are must win."""
        gold = self.family.gold(task, self.options)
        if gold is None:
            return False
        _, results = await self.play(task, gold)
        ended = bool(results) and results[-1].done
        _expect(ended, f"gold answers {list(gold)} do not end {task.id}")
        # None: it has a score, and nobody states a threshold
        won = results[-1].success in (None, True)
        _expect(won, f"gold answers {list(gold)} do not solve {task.id}")
        _expect(len(results) == len(gold), f"{task.id} is over before the gold answers are")
        valid = all(result.action_valid for result in results)
        _expect(valid, f"a gold answer of {task.id} is invalid")
        told = hasattr(self.family, "success_at")  # then success is that so far
        early = any(result.success for result in results[:-1])
        _expect(told or not early, "success before the end")
        return True

    async def scores_are_sound(self) -> None:
        task = self.tasks[0]
        gold = self.family.gold(task, self.options) or ()
        _, results = await self.play(task, [*gold, *[NONSENSE] * self.max_steps])
        kept = [kept_step(result, turn) for turn, result in enumerate(results)]
        outcome(kept[-1], [result.reward for result in kept])  # or it raises

    async def invalid_actions_are_reported(self) -> None:
        if getattr(self.family, "takes_any_text", False):
            raise _NothingToCheckError("every response is an answer (`takes_any_text`)")
        for response in ("", NONSENSE, "\x00\ud7ff\u2028 { [ \\boxed{", "9" * 5000):
            _, results = await self.play(self.tasks[0], [response])
            result = results[0]
            _expect_text(result.observation)
            _expect(not result.action_valid, f"the response {response[:40]!r} counts as valid")
            _expect(not result.success, f"the response {response[:40]!r} succeeds")

    async def limits_end_in_failure(self) -> None:
        _, results = await self.play(self.tasks[0], [NONSENSE] * self.max_steps)
        _expect(results[-1].done, f"the episode still runs after {self.max_steps} steps")
        _expect(not results[-1].success, "an episode of nonsense ends in success")

    async def calls_out_of_order_raise(self) -> None:
        task = self.tasks[0]
        fresh = self.family.make(self.options)
        await self.raises("step before reset", fresh.step(NONSENSE))
        await self.call("close before reset", fresh.close())
        used = self.family.make(self.options)
        await self.call("reset", used.reset(task, seed=self.seed))
        await self.raises("a second reset", used.reset(task, seed=self.seed))
        await self.end(used)
        await self.raises("step after the end", used.step(NONSENSE))
        await self.call("close", used.close())
        await self.call("the second close", used.close())
        await self.raises("step after close", used.step(NONSENSE))

    async def end(self, environment: Environment) -> None:
        for _ in range(self.max_steps):
            if (await self.call("step", environment.step(NONSENSE))).done:
                return

    async def raises(self, what: str, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await self.call(what, coroutine)
        except EnvError:
            return
        raise _BrokenError(f"{what} did not raise EnvError")

    def rewrites(self) -> Iterator[tuple[Task, dict[str, str]]]:
        """Tasks with answers of their menus, evenly over the list."""
        offered = 0
        for task in self.tasks:
            for direction in DIRECTIONS:
                menu = self.family.rewrite_menu(task, direction)
                every = max(1, -(-len(menu.combinations) // REWRITES_TRIED))
                for answer in menu.combinations[::every]:
                    known = all(answer[name] in menu.fields[name] for name in answer)
                    _expect(known, f"the combination {answer} is not in the menu's own fields")
                    offered += 1
                    yield task, answer
        if not offered:
            raise _NothingToCheckError("`rewrite_menu` lists no combinations")

    async def rewrites_are_true(self) -> None:
        for parent, answer in self.rewrites():
            draft = self.family.apply_rewrite(parent, answer)
            for result in self.family.check_rewrite(parent, draft):
                _expect(result.passed, f"rewrite {answer} fails {result.name}: {result.detail}")
            valid = self.family.validate(draft.params) == draft
            _expect(valid, f"rewrite {answer} does not validate")
            _expect(draft.params != parent.params, f"rewrite {answer} changes nothing")
            await self.has_gold(self.task(draft, 0))
            if draft.instruction != parent.instruction:
                stale = TaskDraft(params=draft.params, instruction=parent.instruction)
                self.expect_refused(
                    parent, stale, f"rewrite {answer} with its parent's instruction"
                )

    async def false_rewrites_are_caught(self) -> None:
        tried: set[str] = set()
        for task, answer in self.rewrites():
            if task.id in tried:
                continue
            tried.add(task.id)
            same = TaskDraft(params=task.params, instruction=task.instruction)
            self.expect_refused(task, same, "the unchanged task")
            for name in answer:
                wrong = {**answer, name: "no such value"}
                _refuses("apply_rewrite", partial(self.family.apply_rewrite, task, wrong))

    async def open_rewrites_are_held(self) -> None:
        asked = [
            (task, menu)
            for task in self.tasks
            for direction in DIRECTIONS
            if (menu := self.family.rewrite_menu(task, direction)).json_schema is not None
        ]
        if not asked:
            raise _NothingToCheckError("`rewrite_menu` gives no `json_schema`")
        for task, menu in asked:
            schema = json.loads(menu.json_schema or "")
            fields = schema.get("properties", {}) if schema.get("type") == "object" else {}
            _expect(bool(fields), f"the json_schema of {task.id} is that of no object with fields")
            _expect(not menu.combinations, f"{task.id} has both choices and a json_schema")
            strange = {**dict.fromkeys(fields, NONSENSE), "no_such_field": NONSENSE}
            for answer in ({}, strange):
                _refuses("apply_rewrite", partial(self.family.apply_rewrite, task, answer))
            same = TaskDraft(params=task.params, instruction=task.instruction)
            self.expect_refused(task, same, "the unchanged task")

    def expect_refused(self, parent: Task, draft: TaskDraft, what: str) -> None:
        results = self.family.check_rewrite(parent, draft)
        _expect(not all(result.passed for result in results), f"check_rewrite passes {what}")

    async def levels_are_sound(self) -> None:
        family: object = self.family
        if not isinstance(family, Levels):
            raise _NothingToCheckError("the family has no `at_level`, so no ladder")
        for level in range(LEVELS_TRIED):
            options = family.at_level(level, self.generator_options)
            try:
                made = self.family.generate(count=1, seed=self.seed, options=options)
            except InputError:
                _expect(level > 0, "there is no task of level 0")
                continue
            for params in made:
                await self.has_gold(self.task(self.family.validate(params), level))

    async def distances_are_sound(self) -> None:
        family: object = self.family
        if not isinstance(family, Drift):
            raise _NothingToCheckError(
                "the family has no `drift`; differing parameters are counted"
            )
        for task in self.tasks:
            near = family.drift(task.params, task.params)
            _expect(near == 0.0, f"a task is {near} away from itself, expected 0")
            far = family.drift(task.params, self.tasks[0].params)
            _expect(0.0 <= far <= 1.0, f"two tasks are {far} apart, expected 0 to 1")


def _expect_text(observation: Observation) -> None:
    text, commands = observation.text, observation.admissible
    _expect(isinstance(text, str) and bool(text), f"an observation is {text!r}, expected text")
    texts = all(isinstance(command, str) and command for command in commands)
    _expect(texts, "an admissible command is not text")
    mended = all(whole(shown) == shown for shown in (text, *commands))
    _expect(mended, "an observation or a command holds half a character (a lone surrogate)")


def _refuses(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except InputError as error:
        named = bool(error.detail.strip())
        _expect(named, f"{what} refuses a bad value without a sentence")
        return
    raise _BrokenError(f"{what} accepts a field or value that does not exist")


CHECKS: Final[tuple[Callable[[_Suite], Awaitable[None]], ...]] = (
    _Suite.generate_is_deterministic,
    _Suite.validate_normalises,
    _Suite.unknown_fields_are_refused,
    _Suite.first_observation_announces_the_task,
    _Suite.same_seed_same_episode,
    _Suite.gold_answers_succeed,
    _Suite.scores_are_sound,
    _Suite.invalid_actions_are_reported,
    _Suite.limits_end_in_failure,
    _Suite.calls_out_of_order_raise,
    _Suite.rewrites_are_true,
    _Suite.false_rewrites_are_caught,
    _Suite.open_rewrites_are_held,
    _Suite.levels_are_sound,
    _Suite.distances_are_sound,
)


async def check_environment(
    family: EnvironmentFamily,
    *,
    options: Params | None = None,
    generator_options: Params | None = None,
    tasks: Sequence[Params] = (),
    seed: int = 0,
    count: int = 3,
    max_steps: int = 1000,
    block_limit_s: float = 5.0,
    deadline_s: float = 60.0,
) -> tuple[CheckResult, ...]:
    """Walk the whole contract of a family.

    Args:
        tasks: parameters of tasks to check instead of generated ones, for families or tasks that are uploaded.
        max_steps: an episode of nonsense must end within this many steps.
        block_limit_s: seconds for which one call may hold the event loop between two awaits.
        deadline_s: seconds that one call may take in all.

    Returns:
        One result a check, in order (`not_applicable` picks those that had nothing to look at). When generation itself
        fails, that one result only.
    """
    suite = _Suite(
        family=family,
        options=options or {},
        generator_options=generator_options or {},
        seed=seed,
        count=count,
        max_steps=max_steps,
        block_limit_s=block_limit_s,
        deadline_s=deadline_s,
        rows=tasks,
    )
    results: list[CheckResult] = []
    for check in CHECKS:
        detail, passed = "", True
        try:
            await check(suite)
        except _NothingToCheckError as nothing:
            detail = f"{NOT_APPLICABLE}{nothing}"
        except _BrokenError as broken:
            detail, passed = str(broken), False
        except Exception as error:  # noqa: BLE001  a family may break in any way; the report says how
            detail, passed = f"raised {type(error).__name__}: {error}", False
        name = getattr(check, "__name__", "check")
        results.append(CheckResult(name=name, passed=passed, detail=detail))
        if not suite.tasks:
            break
    return tuple(results)


def not_applicable(results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """The checks that passed only because the family has nothing that they could look at."""
    return tuple(result for result in results if result.detail.startswith(NOT_APPLICABLE))


def require(results: Sequence[CheckResult]) -> None:
    """Raise an `EnvError` that names every failed check and what was seen."""
    failed = tuple(f"{result.name}: {result.detail}" for result in results if not result.passed)
    if failed:
        raise EnvError("; ".join(failed), problems=failed)


__all__ = ["check_environment", "not_applicable", "require"]
