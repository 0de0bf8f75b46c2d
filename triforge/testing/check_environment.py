"""The conformance suite of environment families: it names the promise that an adapter breaks, and what it saw.

    results = await check_environment(family, options={"wording": "terse"})
    require(results)

It plays real episodes and needs no model and no service. A check passes where a family has nothing to check, and its detail
says so; `triforge env check NAME` prints all of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
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

__all__ = ["check_environment", "not_applicable", "require"]

NOT_APPLICABLE: Final = "does not apply: "  # the beginning of the detail of such a check
NONSENSE: Final = "no such action, certainly"
DIRECTIONS: Final[tuple[Direction, ...]] = ("harder", "easier")
REWRITES_TRIED: Final = 8
LEVELS_TRIED: Final = 3
T = TypeVar("T")


class _BrokenError(Exception):
    """A promise of the contract that does not hold, and what was seen."""


class _NothingToCheckError(Exception):
    """A part that the family does not have."""


def _expect(condition: bool, sentence: str) -> None:
    if not condition:
        raise _BrokenError(sentence)


@dataclass(slots=True)
class _Timed(Generic[T]):
    """An awaitable that measures the longest time it kept the event loop between two awaits, in seconds."""

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


@dataclass
class _Player:
    """The episodes of a family and the questions that several checks ask."""

    family: EnvironmentFamily
    options: Params
    generator_options: Params
    rows: Sequence[Params]
    seed: int
    count: int
    max_steps: int
    block_limit_s: float
    deadline_s: float
    tasks: list[Task] = field(default_factory=list)

    async def _call(self, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await one call within the deadline; it must not hold the event loop."""
        timed = _Timed(coroutine)
        try:
            async with asyncio.timeout(self.deadline_s):
                result = await timed
        except TimeoutError:
            raise _BrokenError(f"{name} took longer than {self.deadline_s} s") from None
        _expect(
            timed.longest <= self.block_limit_s,
            f"{name} held the event loop for {timed.longest:.3f} s, allowed are {self.block_limit_s} s; "
            "await the work or move it to a thread",
        )
        return result

    async def _play(self, task: Task, responses: Sequence[str]) -> tuple[Reset, list[StepResult]]:
        """Play an episode: the responses in turn, until it is done or they run out."""
        environment = with_threshold(self.family.make(self.options), self.family, self.options)
        try:
            reset = await self._call("reset", environment.reset(task, seed=self.seed))
            results: list[StepResult] = []
            for response in responses:
                results.append(await self._call("step", environment.step(response)))
                if results[-1].done:
                    break
            return reset, results
        finally:
            await self._call("close", environment.close())

    async def _end(self, environment: Environment) -> None:
        for _ in range(self.max_steps):
            if (await self._call("step", environment.step(NONSENSE))).done:
                return

    async def _expect_error(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await self._call(name, coroutine)
        except EnvError:
            return
        raise _BrokenError(f"{name} did not raise EnvError")

    def _task(self, draft: TaskDraft, index: int) -> Task:
        """Return a stored task as env_adapter would make it."""
        name, own = f"check-{index}", self.family.name
        return Task(id=name, pool_id="check", slot=name, family=own, instruction=draft.instruction, params=draft.params)  # fmt: skip

    async def _has_gold(self, task: Task) -> bool:
        """Whether there are gold answers; if there are any, they must win."""
        gold = self.family.gold(task, self.options)
        if gold is None:
            return False
        _, results = await self._play(task, gold)
        ended = bool(results) and results[-1].done
        _expect(ended, f"gold answers {list(gold)} do not end {task.id}")
        won = results[-1].success in (None, True)  # None: a score without a threshold
        _expect(won, f"gold answers {list(gold)} do not solve {task.id}")
        _expect(len(results) == len(gold), f"{task.id} is over before the gold answers are")
        valid = all(result.action_valid for result in results)
        _expect(valid, f"a gold answer of {task.id} is invalid")
        has_threshold = hasattr(self.family, "success_at")  # then success is that so far
        early = any(result.success for result in results[:-1])
        _expect(has_threshold or not early, "success before the end")
        return True

    def _rewrites(self) -> Iterator[tuple[Task, dict[str, str]]]:
        """Yield tasks with answers of their menus, evenly over the list."""
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

    def _expect_refused(self, parent: Task, draft: TaskDraft, name: str) -> None:
        results = self.family.check_rewrite(parent, draft)
        _expect(not all(result.passed for result in results), f"check_rewrite passes {name}")

    def _expect_unchanged_refused(self, task: Task) -> None:
        same = TaskDraft(params=task.params, instruction=task.instruction)
        self._expect_refused(task, same, "the unchanged task")


class _Checks(_Player):
    """The checks in their order; the name of each method is the name of its result."""

    async def generate_is_deterministic(self) -> None:
        if self.rows:
            drafts = [self.family.validate(params) for params in self.rows]
            self.tasks = [self._task(draft, index) for index, draft in enumerate(drafts)]
            raise _NothingToCheckError("the tasks were given, not generated")
        make = partial(self.family.generate, count=self.count, seed=self.seed)
        first, again = (make(options=self.generator_options) for _ in range(2))
        _expect(len(first) == self.count, f"asked for {self.count} tasks, got {len(first)}")
        _expect(first == again, "the same seed and options gave other tasks the second time")
        for index, params in enumerate(first):
            draft = self.family.validate(params)
            stored = draft.params
            _expect(json.loads(json.dumps(stored)) == stored, f"params are not JSON: {stored!r}")
            self.tasks.append(self._task(draft, index))

    async def validate_normalises(self) -> None:
        for task in self.tasks:
            draft = self.family.validate(task.params)
            _expect(draft.params == task.params, "validating validated params changes them")
            _expect(draft.instruction == task.instruction, "the same params gave two instructions")
            _expect(bool(draft.instruction.strip()), "the instruction is empty")

    async def unknown_fields_are_refused(self) -> None:
        strange: Params = {"no_such_field": 1}
        generate = partial(self.family.generate, count=1, seed=0)
        validated: Params = {**self.tasks[0].params, **strange}
        _refuses("validate", lambda: self.family.validate(validated))
        _refuses("make", lambda: self.family.make({**self.options, **strange}))
        _refuses("generate", lambda: generate(options={**self.generator_options, **strange}))

    async def first_observation_announces_the_task(self) -> None:
        for task in self.tasks:
            reset, _ = await self._play(task, ())
            _expect_text(reset.observation)
            _expect(isinstance(reset.system, str), f"the system message is {reset.system!r}")
            _expect(
                task.instruction in reset.observation.text,
                f"the first observation does not contain the instruction {task.instruction!r}",
            )

    async def same_seed_same_episode(self) -> None:
        for task in self.tasks:
            responses = [NONSENSE, *(self.family.gold(task, self.options) or ()), NONSENSE]
            first, again = await self._play(task, responses), await self._play(task, responses)
            _expect(first == again, f"task {task.id} went differently the second time")

    async def gold_answers_succeed(self) -> None:
        known = [await self._has_gold(task) for task in self.tasks]
        if not any(known):
            raise _NothingToCheckError("`gold` knows an answer to none of the tasks")

    async def scores_are_sound(self) -> None:
        task = self.tasks[0]
        gold = self.family.gold(task, self.options) or ()
        _, results = await self._play(task, [*gold, *[NONSENSE] * self.max_steps])
        kept = [kept_step(result, turn) for turn, result in enumerate(results)]
        outcome(kept[-1], [result.reward for result in kept])  # raises for unsound scores

    async def invalid_actions_are_reported(self) -> None:
        if getattr(self.family, "takes_any_text", False):
            raise _NothingToCheckError("every response is an answer (`takes_any_text`)")
        for response in ("", NONSENSE, "\x00\ud7ff\u2028 { [ \\boxed{", "9" * 5000):
            _, results = await self._play(self.tasks[0], [response])
            result = results[0]
            _expect_text(result.observation)
            _expect(not result.action_valid, f"the response {response[:40]!r} counts as valid")
            _expect(not result.success, f"the response {response[:40]!r} succeeds")

    async def limits_end_in_failure(self) -> None:
        _, results = await self._play(self.tasks[0], [NONSENSE] * self.max_steps)
        _expect(results[-1].done, f"the episode still runs after {self.max_steps} steps")
        _expect(not results[-1].success, "an episode of nonsense ends in success")

    async def calls_out_of_order_raise(self) -> None:
        task = self.tasks[0]
        fresh = self.family.make(self.options)
        await self._expect_error("step before reset", fresh.step(NONSENSE))
        await self._call("close before reset", fresh.close())
        used = self.family.make(self.options)
        await self._call("reset", used.reset(task, seed=self.seed))
        await self._expect_error("a second reset", used.reset(task, seed=self.seed))
        await self._end(used)
        await self._expect_error("step after the end", used.step(NONSENSE))
        await self._call("close", used.close())
        await self._call("the second close", used.close())
        await self._expect_error("step after close", used.step(NONSENSE))

    async def rewrites_are_true(self) -> None:
        for parent, answer in self._rewrites():
            draft = self.family.apply_rewrite(parent, answer)
            for result in self.family.check_rewrite(parent, draft):
                _expect(result.passed, f"rewrite {answer} fails {result.name}: {result.detail}")
            valid = self.family.validate(draft.params) == draft
            _expect(valid, f"rewrite {answer} does not validate")
            _expect(draft.params != parent.params, f"rewrite {answer} changes nothing")
            await self._has_gold(self._task(draft, 0))
            if draft.instruction != parent.instruction:
                stale = TaskDraft(params=draft.params, instruction=parent.instruction)
                name = f"rewrite {answer} with its parent's instruction"
                self._expect_refused(parent, stale, name)

    async def false_rewrites_are_caught(self) -> None:
        tried: set[str] = set()
        for task, answer in self._rewrites():
            if task.id not in tried:
                tried.add(task.id)
                self._expect_unchanged_refused(task)
                for name in answer:
                    wrong = {**answer, name: "no such value"}
                    _refuses("apply_rewrite", partial(self.family.apply_rewrite, task, wrong))

    async def open_rewrites_are_held(self) -> None:
        menus = [
            (task, menu)
            for task in self.tasks
            for direction in DIRECTIONS
            if (menu := self.family.rewrite_menu(task, direction)).json_schema is not None
        ]
        if not menus:
            raise _NothingToCheckError("`rewrite_menu` gives no `json_schema`")
        for task, menu in menus:
            schema = json.loads(menu.json_schema or "")
            fields = schema.get("properties", {}) if schema.get("type") == "object" else {}
            _expect(bool(fields), f"the json_schema of {task.id} is that of no object with fields")
            _expect(not menu.combinations, f"{task.id} has both choices and a json_schema")
            strange = {**dict.fromkeys(fields, NONSENSE), "no_such_field": NONSENSE}
            for answer in ({}, strange):
                _refuses("apply_rewrite", partial(self.family.apply_rewrite, task, answer))
            self._expect_unchanged_refused(task)

    async def levels_are_sound(self) -> None:
        family: object = self.family
        if not isinstance(family, Levels):
            raise _NothingToCheckError("the family has no `at_level`, so no difficulty levels")
        for level in range(LEVELS_TRIED):
            options = family.at_level(level, self.generator_options)
            try:
                made = self.family.generate(count=1, seed=self.seed, options=options)
            except InputError:
                _expect(level > 0, "there is no task of level 0")
                continue
            for params in made:
                await self._has_gold(self._task(self.family.validate(params), level))

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


def _refuses(name: str, call: Callable[[], object]) -> None:
    try:
        call()
    except InputError as error:
        _expect(bool(error.detail.strip()), f"{name} refuses a bad value without a sentence")
        return
    raise _BrokenError(f"{name} accepts a field or value that does not exist")


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
    """Check the whole contract of a family.

    Args:
        tasks: parameters of tasks to check instead of generated ones, for families or tasks that are uploaded.
        max_steps: an episode of nonsense must end within this many steps.
        block_limit_s: seconds for which one call may hold the event loop between two awaits.
        deadline_s: seconds that one call may take in all.

    Returns:
        A result for each check, in order (`not_applicable` selects those with nothing to check). When generation itself
        fails, its result only.
    """
    checks = _Checks(
        family, options or {}, generator_options or {}, tasks, seed, count, max_steps, block_limit_s, deadline_s
    )  # fmt: skip
    results: list[CheckResult] = []
    for name in (name for name in vars(_Checks) if not name.startswith("_")):
        detail, passed = "", True
        try:
            await getattr(checks, name)()
        except _NothingToCheckError as nothing:
            detail = f"{NOT_APPLICABLE}{nothing}"
        except _BrokenError as broken:
            detail, passed = str(broken), False
        except Exception as error:  # noqa: BLE001  a family may fail in any way; the report says how
            detail, passed = f"raised {type(error).__name__}: {error}", False
        results.append(CheckResult(name=name, passed=passed, detail=detail))
        if not checks.tasks:
            break
    return tuple(results)


def not_applicable(results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the checks that passed only because the family has nothing to check."""
    return tuple(result for result in results if result.detail.startswith(NOT_APPLICABLE))


def require(results: Sequence[CheckResult]) -> None:
    """Raise an `EnvError` that names every failed check and what was seen."""
    failed = tuple(f"{result.name}: {result.detail}" for result in results if not result.passed)
    if failed:
        raise EnvError("; ".join(failed), problems=failed)
