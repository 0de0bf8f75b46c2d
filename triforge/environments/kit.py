"""The base of every family: parameters from JSON, answers from responses, an environment of one plain episode.

All names are public: use `from triforge.environments.kit import ...` in your own package.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, Literal, Protocol, TypeVar
from unicodedata import category, normalize

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from triforge.errors import EnvError, InputError
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import Environment, Reset, RewriteMenu, TaskDraft
from triforge.rollout.protocols import Observation as Observation
from triforge.rollout.protocols import StepResult as StepResult
from triforge.types import CheckResult, Direction, Params, Task

ModelT = TypeVar("ModelT", bound=BaseModel)
GivenT = TypeVar("GivenT")
PlayT = TypeVar("PlayT", bound=BaseModel)
StateT = TypeVar("StateT", bound=Hashable)
T = TypeVar("T")
_SHOWN = 60  # characters of a bad value

# ---- parameters -------------------------------------------------------------------------------------------------


class Strict(BaseModel):
    """Base of the models of tasks and options: frozen, no unknown fields, no coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _ordered(pair: list[int]) -> list[int]:
    if pair[0] > pair[1]:
        raise ValueError("the first number must not be above the second")
    return pair


ORDERED: Final = AfterValidator(_ordered)
"""The validator of an option `[lowest, highest]`: `Annotated[list[int], Field(min_length=2, max_length=2), ORDERED]`."""


def parse_model(model: type[ModelT], value: Params, what: str) -> ModelT:
    """Read a JSON object as `model`, a list also as a tuple; `what` names it in errors, such as "household params".

    Raises:
        InputError: names every field that is unknown, missing or out of its limits; or the value is no JSON.
    """
    try:
        return _of_json(model, value)
    except (TypeError, RecursionError) as error:
        raise InputError(f"{what}: expected JSON: {error}") from None
    except ValidationError as error:
        problems = tuple(_sentence(item, sorted(model.model_fields)) for item in error.errors())
        raise InputError(f"{what}: {'; '.join(problems)}", problems=problems) from None


def _of_json(model: type[ModelT], value: Params) -> ModelT:
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        if error.errors()[0]["type"] != "json_invalid":
            raise
    return model.model_validate(value)  # names the field that JSON cannot express


def _sentence(item: ErrorDetails, known: list[str]) -> str:
    place = item["loc"]
    if item["type"] == "extra_forbidden" and len(place) == 1:
        return f"field {place[0]}: unknown, known are {', '.join(known) or 'none'}"
    shown = repr(item.get("input"))
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    message = item["msg"].removeprefix("Value error, ")
    return f"field {'.'.join(map(str, place)) or '(all)'}: {message} (given {shown})"


def first_valid(
    choose: Callable[[], Params], validate: Callable[[Params], object], draws: int
) -> Params:
    """Return the first of `draws` choices that `validate` accepts; raise the InputError of the last one if there is none."""
    for left in reversed(range(draws)):
        try:
            params = choose()
            validate(params)
        except InputError:
            if not left:
                raise
        else:
            return params
    raise AssertionError("the last draw returns or raises")


def path_back(came: dict[StateT, tuple[StateT, T] | None], end: StateT) -> list[T]:
    """Return the moves of a search from its start to `end`; `came` maps each state to the state and move before it."""
    moves: list[T] = []
    step = came[end]
    while step is not None:
        moves.append(step[1])
        step = came[step[0]]
    return moves[::-1]


def same_words(text: str) -> str:
    """Return a text without case, white space, forms of characters and invisible ones; texts that differ in these ask the same."""
    folded = normalize("NFKC", normalize("NFKC", text).casefold())
    if not folded.isascii():
        folded = "".join(c for c in folded if category(c) != "Cf")
    return " ".join(folded.split())


# ---- answers ----------------------------------------------------------------------------------------------------

Answer = Literal["whole", "last_line", "boxed", "tag"]
Marked = Literal["boxed", "tag"]

HOW_TO_ANSWER: Final[dict[Answer, str]] = {
    "whole": "Answer with {what} only.",
    "last_line": "Think first if you like; the last line of your answer must be {what} only.",
    "boxed": "Think first, then write {what} in \\boxed{{}}.",
    "tag": "Think first, then write {what} between <answer> and </answer>.",
}
"""The sentence about the form of an answer; `what` is its content."""

_OPEN, _CLOSE = "<answer>", "</answer>"
_BOXED = "\\boxed{"


class AnswerOptions(Strict):
    """The reading of a response: the part that is the action, and whether a system message explains the task."""

    answer: Answer = "whole"
    guide: bool = True

    def system(self, guide: str, what: str) -> str:
        """Return the system message: `guide` with the form of the answer for `{answer}`; empty without a guide."""
        form = HOW_TO_ANSWER[self.answer].format(what=what)
        return guide.format(answer=form) if self.guide else ""


def part_of(response: str, answer: Answer) -> str:
    """Return the part of a response that is the action; empty if there is none."""
    if answer == "last_line":
        lines = [line for line in response.splitlines() if line.strip()]
        return lines[-1] if lines else ""
    if answer == "boxed":
        return _last_boxed(response)
    if answer == "tag":
        before, found, _ = response.rpartition(_CLOSE)
        return before.rpartition(_OPEN)[2] if found and _OPEN in before else ""
    return response


def wrapped(action: str, answer: Answer) -> str:
    """Return a response with this action."""
    if answer == "tag":
        return f"{_OPEN}{action}{_CLOSE}"
    return f"\\boxed{{{action}}}" if answer == "boxed" else action


def _last_boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{}` whose braces balance, in one pass; empty if there is none."""
    opened: list[int] = []
    last = (0, 0)
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened:
            start = opened.pop()
            if start > last[0] and text.endswith(_BOXED, 0, start):
                last = start, brace.start()
    return text[slice(*last)]


# ---- episodes ---------------------------------------------------------------------------------------------------


class Episode(Protocol):
    """A running game; its methods may be coroutines. Without `start` it begins with the task's instruction.

    An episode that can be copied between two steps has `fork()`, which returns the copy; tree rollouts then need not replay
    its responses, in a family with `never_blocks` and without `success_at`. An episode with resources has
    `leave(*, sound: bool)`, which is called once after it is closed, from any thread, also during another call; `sound` is
    False if a call raised or still runs.
    """

    done: bool

    def start(self) -> Reset | Awaitable[Reset]:
        """Return the system message and the first observation; called once, first."""

    def play(self, response: str) -> StepResult | Awaitable[StepResult]:
        """Play one response; never called when `done`."""


class OneEpisode:
    """An `Environment` that plays one `Episode`, then is used up.

    Args:
        begin: makes the episode of a task and a seed, after a check of the instruction (`expect_announced`).
        blocks: whether `begin` and the episode may block; they then run in a thread of this executor, or with True of the
            event loop's own. Families whose episodes share a loop bring their own executor, so that they do not occupy the
            loop's.
    """

    def __init__(
        self, name: str, begin: Callable[[Task, int], Episode], *, blocks: bool | Executor = False
    ) -> None:
        self._name = name
        self._begin = begin
        self._blocks = blocks
        self._episode: Episode | None = None
        self._used = self._closed = self._busy = False

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Start the task; raise EnvError if the environment was used before, or `begin` refuses the task."""
        if self._used:
            raise EnvError(
                f"{self._name}: an environment plays one episode; make a fresh one to reset"
            )
        self._used = True

        def start() -> Reset | Awaitable[Reset]:
            episode = self._episode = self._begin(task, seed)
            if self._closed:  # its caller has left
                _leave(episode, sound=False)
                raise EnvError(f"{self._name}: the episode was closed while it started")
            if not hasattr(episode, "start"):
                return Reset(observation=Observation(text=task.instruction))
            return episode.start()

        return await self._run(start)

    async def step(self, response: str) -> StepResult:
        """Play one response; raise EnvError if the episode is over, closed or was never started."""
        episode = self._episode
        if episode is None or episode.done:
            raise EnvError(
                f"{self._name}: step after the end or before reset; the episode is not running"
            )
        return await self._run(lambda: episode.play(response))

    async def fork(self) -> OneEpisode | None:
        """Copy an episode that has a method `fork`; return None for any other."""
        made: Callable[[], Episode] | None = getattr(self._episode, "fork", None)
        if made is None:
            return None
        copy = OneEpisode(self._name, self._begin, blocks=self._blocks)
        copy._used, copy._episode = True, await self._run(made)
        return copy

    async def close(self) -> None:
        """Free the episode's resources, also during a call that was abandoned. Idempotent."""
        self._used = self._closed = True
        episode, self._episode = self._episode, None
        if hasattr(episode, "leave"):
            left = await asyncio.to_thread(_leave, episode, sound=not self._busy)
            if inspect.isawaitable(left):
                await left

    async def _run(self, work: Callable[[], T | Awaitable[T]]) -> T:
        """Do the work; when it raises or is cancelled, the mark stays and the episode is not sound."""
        self._busy = True
        if self._blocks is False:
            result = work()
        else:
            threads = None if self._blocks is True else self._blocks
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(threads, copy_context().run, work)
        done: T = await result if inspect.isawaitable(result) else result
        self._busy = False
        return done


def _leave(episode: Episode | None, *, sound: bool) -> object:
    leave = getattr(episode, "leave", None)
    return leave(sound=sound) if leave else None


def expect_announced(name: str, task: Task, expected: str) -> None:
    """Raise an EnvError that is not retryable if a task's instruction does not follow from its parameters."""
    if task.instruction != expected:
        error = EnvError(
            f"{name}: task {task.id} announces {task.instruction[:200]!r}, "
            f"but its parameters reward {expected[:200]!r}"
        )
        error.retryable = False
        raise error


# ---- rewrites ---------------------------------------------------------------------------------------------------


def closed_menu(description: str, combinations: Sequence[dict[str, str]]) -> RewriteMenu:
    """Return a menu of these answers; the values of each field are in the order of their first occurrence."""
    names = combinations[0] if combinations else ()
    return RewriteMenu(
        description=description,
        fields={name: tuple(dict.fromkeys(one[name] for one in combinations)) for name in names},
        combinations=tuple(combinations),
    )


def expect_fields(answer: Mapping[str, str], fields: Collection[str], what: str) -> None:
    """Raise an `InputError` for an answer to a menu that has other fields."""
    if set(answer) != set(fields):
        raise InputError(
            f"{what}: fields: given {sorted(answer)}, expected exactly {', '.join(fields)}"
        )


def proofs(*results: tuple[str, bool] | tuple[str, bool, str]) -> list[CheckResult]:
    """Return the results of checks, each a name, whether it passed, and an optional detail."""
    return [
        CheckResult(name=name, passed=passed, detail=" ".join(detail))
        for name, passed, *detail in results
    ]


@dataclass(frozen=True, kw_only=True)
class Beginner:
    """Small tasks of a family, and a player of them that often errs; a tiny model imitates it before it is trained.

    Attributes:
        generate: options of the generator, where the user gives none.
        options: options of the episodes, where the user gives none.
        play: returns the player's responses in an episode of a task's parameters, with options and chance.
        episodes: how many are imitated.
        updates: of the imitation, of 16 conversations each.
    """

    generate: Params
    options: Params
    play: Callable[[Params, Params, Random], Sequence[str]]
    episodes: int = 1024
    updates: int = 400


# ---- families ---------------------------------------------------------------------------------------------------


class Family(ABC, Generic[GivenT, PlayT]):
    """A family whose tasks are plain parameters and whose episodes are plain code; a subclass writes only the differences.

    Attributes:
        name: as in `Task.family`.
        params: the model of a task's parameters, unless `read` is overridden.
        generator_options: the model of the generator's options, which `drawn` gets.
        episode: makes an episode of parameters and options, unless `begin` is overridden.
        play_options: the model of the options of episodes, by default without any; `begin` and `solution` get one.
        blocks: see `OneEpisode`. With False, also set `never_blocks = True`.
        beginner: what `--model tiny` starts with; None imitates solutions.
    """

    name: str
    params: type[BaseModel]
    generator_options: type[BaseModel] = Strict
    episode: Callable[[Any, Any], Episode]
    play_options: type[PlayT] = Strict  # type: ignore[assignment]
    blocks: bool | Executor = False
    beginner: Beginner | None = None

    def read(self, params: Params) -> GivenT:
        """Read the parameters of a task; raise an InputError that names each bad field (`parse_model`)."""
        given: Any = parse_model(self.params, params, f"{self.name} params")
        return given  # type: ignore[no-any-return]

    @abstractmethod
    def instruction(self, given: GivenT) -> str:
        """Return the instruction; it follows from the parameters alone, and quickly."""

    def new_task(self, rng: Random) -> Params:  # noqa: ARG002
        """Make one solvable task, for a generator without options."""
        raise InputError(f"{self.name}: the family generates no tasks; upload them")

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Make solvable tasks; same seed and options, same tasks."""
        wanted = parse_model(self.generator_options, options, f"{self.name} generate")
        seeded = (Random(f"{self.name} {seed} {n}") for n in range(count))  # noqa: S311
        return [self.drawn(rng, wanted) for rng in seeded]

    def drawn(self, rng: Random, wanted: Any) -> Params:  # noqa: ARG002
        """Make one solvable task, for a generator with options; `wanted` are its `generator_options`."""
        return self.new_task(rng)

    def begin(self, given: GivenT, options: PlayT, announced: str, seed: int) -> Episode:  # noqa: ARG002
        """Make the episode of a task; `announced` is its instruction, which `start` shows."""
        return self.episode(given, options)

    def check(self, given: GivenT) -> None:
        """Raise an InputError for valid parameters of a task that cannot be won; this may take long."""

    def kind(self, given: GivenT) -> str:  # noqa: ARG002
        """Return the family's name for tasks of this sort."""
        return ""

    def write(self, given: GivenT) -> Params:
        """Return the parameters in full, as they are stored."""
        assert isinstance(given, BaseModel), "a family with other parameters overrides `write`"
        return given.model_dump(mode="json")

    def asks(self, draft: TaskDraft, options: Params) -> str:  # noqa: ARG002
        """Return what a task of a pool with these options asks; tasks with equal texts are never in two splits.

        By default these are all of its parameters. A family whose rows have ids, seeds or answers besides the question leaves
        them out (`same_words` of the question).
        """
        return identity(draft.params)

    def solution(self, given: GivenT, options: PlayT) -> Sequence[str] | None:  # noqa: ARG002
        """Return responses that win, if the family can find them."""
        return None

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a task and write its instruction."""
        given = self.read(params)
        self.check(given)
        return self.draft(given)

    def draft(self, given: GivenT) -> TaskDraft:
        """Make the draft of a checked task."""
        return TaskDraft(
            params=self.write(given),
            instruction=self.instruction(given),
            kind=self.kind(given)[:64],
        )

    def make(self, options: Params) -> Environment:
        """Make a fresh environment with the options of a run."""
        play = parse_model(self.play_options, options, f"{self.name} options")

        def begin(task: Task, seed: int) -> Episode:
            given = self.read(task.params)
            expect_announced(self.name, task, self.instruction(given))
            return self.begin(given, play, task.instruction, seed)

        return OneEpisode(self.name, begin, blocks=self.blocks)

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """Return the family's solution of a task with the options of a run."""
        play = parse_model(self.play_options, options, f"{self.name} options")
        return self.solution(self.read(task.params), play)

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:  # noqa: ARG002
        """Return an empty menu: a language model rewrites no task of this family, unless it overrides these functions."""
        return RewriteMenu(description=task.instruction)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:  # noqa: ARG002
        """Refuse with an `InputError`."""
        raise InputError(
            f"{self.name}: tasks are generated, not rewritten; set adaptation.controller to 'none', or to one that draws tasks "
            "from difficulty levels"
        )

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:  # noqa: ARG002
        """Return a check that fails."""
        return [CheckResult(name="rewritable", passed=False, detail=f"{self.name} is not")]
