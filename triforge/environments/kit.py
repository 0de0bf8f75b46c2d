"""What every family needs: parameters read from JSON, answers read from responses, an environment of one plain episode.

All of it is public: `from triforge.environments.kit import ...` in a package of yours.
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
from random import Random
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from triforge.errors import EnvError, InputError
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
    """Base of the models that describe tasks and options: frozen, nothing unknown, nothing coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _ordered(pair: list[int]) -> list[int]:
    if pair[0] > pair[1]:
        raise ValueError("the first number must not be above the second")
    return pair


ORDERED: Final = AfterValidator(_ordered)
"""Of an option `[lowest, highest]`: `Annotated[list[int], Field(min_length=2, max_length=2), ORDERED]`."""


def parse_model(model: type[ModelT], value: Params, what: str) -> ModelT:
    """Read a JSON object as `model`, a list also as a tuple; `what` is what it is called in the sentence, such as "household params".

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
    return model.model_validate(value)  # names the field of what JSON has no words for


def _sentence(item: ErrorDetails, known: list[str]) -> str:
    place = item["loc"]
    if item["type"] == "extra_forbidden" and len(place) == 1:
        return f"field {place[0]}: unknown, known are {', '.join(known) or 'none'}"
    shown = repr(item.get("input"))
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    said = item["msg"].removeprefix("Value error, ")
    return f"field {'.'.join(map(str, place)) or '(all)'}: {said} (given {shown})"


def first_valid(
    choose: Callable[[], Params], validate: Callable[[Params], object], draws: int
) -> Params:
    """The first of `draws` choices that can be made and that `validate` takes; the last one's `InputError` if there is none."""
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
    """The moves that a search took from its start to `end`: `came` says of each state which state and move led there."""
    moves: list[T] = []
    step = came[end]
    while step is not None:
        moves.append(step[1])
        step = came[step[0]]
    return moves[::-1]


# ---- answers ----------------------------------------------------------------------------------------------------

Answer = Literal["whole", "last_line", "boxed", "tag"]
Marked = Literal["boxed", "tag"]

HOW_TO_ANSWER: Final[dict[Answer, str]] = {
    "whole": "Answer with {what} only.",
    "last_line": "Think first if you like; the last line of your answer must be {what} only.",
    "boxed": "Think first, then write {what} in \\boxed{{}}.",
    "tag": "Think first, then write {what} between <answer> and </answer>.",
}
"""The sentence that tells a policy how to answer; `what` is what it is to write."""

_OPEN, _CLOSE = "<answer>", "</answer>"
_BOXED = "\\boxed{"


class AnswerOptions(Strict):
    """How a response is read: which part of it is the action, and whether a system message explains the task."""

    answer: Answer = "whole"
    guide: bool = True

    def system(self, guide: str, what: str) -> str:
        """The system message: `guide` with `{answer}` filled in, which asks for `what`; empty without a guide."""
        asked = HOW_TO_ANSWER[self.answer].format(what=what)
        return guide.format(answer=asked) if self.guide else ""


def part_of(response: str, answer: Answer) -> str:
    """The part of a response that is the action; empty when there is none."""
    if answer == "last_line":
        lines = [line for line in response.splitlines() if line.strip()]
        return lines[-1] if lines else ""
    if answer == "boxed":
        return _last_boxed(response)
    if answer == "tag":
        before, found, _ = response.rpartition(_CLOSE)
        return before.rpartition(_OPEN)[2] if found and _OPEN in before else ""
    return response


def wrapped(said: str, answer: Answer) -> str:
    """`said` as a response of which it is the action."""
    if answer == "tag":
        return f"{_OPEN}{said}{_CLOSE}"
    return f"\\boxed{{{said}}}" if answer == "boxed" else said


def _last_boxed(text: str) -> str:
    r"""The content of the last `\boxed{}` whose braces balance; empty when there is none. One pass over the braces."""
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
    """A game being played; its methods may be coroutines. Without `start` it begins with what the task announces.

    One that can be copied between two steps has `fork()`, which returns the copy; in a family with `never_blocks` and without
    `success_at` tree rollouts then need not play its responses again. One that holds what must be freed also has `leave(*, sound: bool)`: called once the episode is closed, from any thread, also
    while another call is under way; `sound` is False when a call raised or still runs.
    """

    done: bool

    def start(self) -> Reset | Awaitable[Reset]:
        """The system message and the first observation; called once, first."""

    def play(self, response: str) -> StepResult | Awaitable[StepResult]:
        """Play one response; never called when `done`."""


class OneEpisode:
    """An `Environment` that plays one `Episode`, then is used up.

    Args:
        begin: makes the episode of a task and a seed; checks that the task is what it announces (`expect_announced`).
        blocks: whether `begin` and the episode may take their time; they then run in a thread: one of these, or with True
            one of the event loop's own. Families whose episodes share a loop bring their own, so that others are not kept
            from the loop's.
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
        """Start the task; an `EnvError` if the environment was used before, or `begin` refuses the task."""
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
        """Play one response; an `EnvError` if the episode is over, closed or was never started."""
        episode = self._episode
        if episode is None or episode.done:
            raise EnvError(
                f"{self._name}: step after the end or before reset; the episode is not running"
            )
        return await self._run(lambda: episode.play(response))

    async def fork(self) -> OneEpisode | None:
        """A copy of an episode that makes one by its method `fork`; of any other none."""
        made: Callable[[], Episode] | None = getattr(self._episode, "fork", None)
        if made is None:
            return None
        copy = OneEpisode(self._name, self._begin, blocks=self._blocks)
        copy._used, copy._episode = True, await self._run(made)
        return copy

    async def close(self) -> None:
        """Forget the episode and free what it holds, also under a call that was given up. Idempotent."""
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
    """Raise an `EnvError`, not to be retried, for a task that does not announce what its parameters reward."""
    if task.instruction != expected:
        error = EnvError(
            f"{name}: task {task.id} announces {task.instruction[:200]!r}, "
            f"but its parameters reward {expected[:200]!r}"
        )
        error.retryable = False
        raise error


# ---- rewrites ---------------------------------------------------------------------------------------------------


def closed_menu(description: str, combinations: Sequence[dict[str, str]]) -> RewriteMenu:
    """Return a menu of these answers; the values of each field stand in the order in which they first occur."""
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
    """Return the results of checks, each given as name, whether it passed and, where it helps, a detail."""
    return [
        CheckResult(name=name, passed=passed, detail=" ".join(detail))
        for name, passed, *detail in results
    ]


# ---- families ---------------------------------------------------------------------------------------------------


class NeverRewritten:
    """Base of families whose tasks a language model cannot change; the ladder may still replace them."""

    name: str

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:  # noqa: ARG002
        """Nothing to choose from, so no task is ever rewritten."""
        return RewriteMenu(description=task.instruction)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:  # noqa: ARG002
        """Refuse with an `InputError`."""
        raise InputError(
            f"{self.name}: tasks are generated, not rewritten; set adaptation.controller to 'ladder' or 'none'"
        )

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:  # noqa: ARG002
        """Nothing is proved, so nothing passes."""
        return [CheckResult(name="rewritable", passed=False, detail=f"{self.name} is not")]


class Family(NeverRewritten, ABC, Generic[GivenT, PlayT]):
    """A family whose tasks are plain parameters and whose episodes are plain code; what is left to write is what differs.

    Attributes:
        name: as in `Task.family`.
        params: the parameters of a task, where `read` need not do more than check them.
        generator_options: the options of the generator, which `drawn` gets.
        episode: makes an episode of these parameters and the options, where `begin` need not know more.
        play_options: how a run says that episodes are played, by default without options; `begin` and `solution` get one.
        blocks: see `OneEpisode`. With False, also say `never_blocks = True`.
    """

    name: str
    params: type[BaseModel]
    generator_options: type[BaseModel] = Strict
    episode: Callable[[Any, Any], Episode]
    play_options: type[PlayT] = Strict  # type: ignore[assignment]
    blocks: bool | Executor = False

    def read(self, params: Params) -> GivenT:
        """The parameters of a task, or an `InputError` that names each bad field (`parse_model`)."""
        given: Any = parse_model(self.params, params, f"{self.name} params")
        return given  # type: ignore[no-any-return]

    @abstractmethod
    def instruction(self, given: GivenT) -> str:
        """What is announced; it follows from the parameters alone, and quickly."""

    def new_task(self, rng: Random) -> Params:  # noqa: ARG002
        """One solvable task, for a generator without options."""
        raise InputError(f"{self.name}: makes no tasks itself; upload them")

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Solvable tasks; same seed and options, same tasks."""
        wanted = parse_model(self.generator_options, options, f"{self.name} generate")
        seeded = (Random(f"{self.name} {seed} {n}") for n in range(count))  # noqa: S311
        return [self.drawn(rng, wanted) for rng in seeded]

    def drawn(self, rng: Random, wanted: Any) -> Params:  # noqa: ARG002
        """One solvable task, for a generator with options; `wanted` are its `generator_options`."""
        return self.new_task(rng)

    def begin(self, given: GivenT, options: PlayT, announced: str, seed: int) -> Episode:  # noqa: ARG002
        """The episode of a task, which announces what `given` rewards: its instruction, which `start` shows."""
        return self.episode(given, options)

    def check(self, given: GivenT) -> None:
        """Refuse, with an `InputError`, what can be read and cannot be won; may take its time."""

    def kind(self, given: GivenT) -> str:  # noqa: ARG002
        """The family's word for tasks of this sort."""
        return ""

    def write(self, given: GivenT) -> Params:
        """The parameters in full, as they are stored."""
        assert isinstance(given, BaseModel), "a family of other parameters writes them itself"
        return given.model_dump(mode="json")

    def solution(self, given: GivenT, options: PlayT) -> Sequence[str] | None:  # noqa: ARG002
        """Responses that win, if the family can find them."""
        return None

    def validate(self, params: Params) -> TaskDraft:
        """Check and normalise a task and write its instruction."""
        given = self.read(params)
        self.check(given)
        return self.draft(given)

    def draft(self, given: GivenT) -> TaskDraft:
        """A checked task with its instruction."""
        return TaskDraft(
            params=self.write(given),
            instruction=self.instruction(given),
            kind=self.kind(given)[:64],
        )

    def make(self, options: Params) -> Environment:
        """A fresh environment under the options of a run."""
        play = parse_model(self.play_options, options, f"{self.name} options")

        def begin(task: Task, seed: int) -> Episode:
            given = self.read(task.params)
            expect_announced(self.name, task, self.instruction(given))
            return self.begin(given, play, task.instruction, seed)

        return OneEpisode(self.name, begin, blocks=self.blocks)

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """The family's solution of a task under the options of a run."""
        play = parse_model(self.play_options, options, f"{self.name} options")
        return self.solution(self.read(task.params), play)
