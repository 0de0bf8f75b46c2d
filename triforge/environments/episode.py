"""What families without rewrites share: the asynchronous shell round one episode, and the answers to who would rewrite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Protocol, TypeVar

from triforge.errors import EnvError, InputError
from triforge.rollout.protocols import Reset, RewriteMenu, StepResult, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

T = TypeVar("T")


def first_valid(
    choose: Callable[[], Params], validate: Callable[[Params], object], draws: int
) -> Params:
    """The first of `draws` choices that can be made and that `validate` takes.

    Raises:
        InputError: all of them were refused; the sentence is that of the last.
    """
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


class Episode(Protocol):
    """A game being played, as plain synchronous code."""

    done: bool

    def start(self) -> Reset:
        """The system message and the first observation; called once, first."""
        ...

    def play(self, response: str) -> StepResult:
        """Play one response; never called when `done`."""
        ...


class OneEpisode:
    """An `Environment` that plays one `Episode`, then is used up.

    Args:
        name: of the family, for sentences.
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
        self._used = False

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Start the task.

        Raises:
            EnvError: the environment was used before, or `begin` refuses the task.
        """
        if self._used:
            raise EnvError(
                f"{self._name}: an environment plays one episode; make a fresh one to reset"
            )
        self._used = True

        def start() -> Reset:
            self._episode = self._begin(task, seed)
            return self._episode.start()

        return await self._run(start)

    async def step(self, response: str) -> StepResult:
        """Play one response.

        Raises:
            EnvError: the episode is over, closed or was never started.
        """
        episode = self._episode
        if episode is None or episode.done:
            raise EnvError(
                f"{self._name}: step after the end or before reset; the episode is not running"
            )
        return await self._run(lambda: episode.play(response))

    async def close(self) -> None:
        """Forget the episode. Idempotent."""
        self._used = True
        self._episode = None

    async def _run(self, work: Callable[[], T]) -> T:
        if self._blocks is False:
            return work()
        threads = None if self._blocks is True else self._blocks
        return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, work)


def expect_announced(name: str, task: Task, expected: str) -> None:
    """A task must announce what its parameters reward.

    Raises:
        EnvError: it does not; trying again does not help.
    """
    if task.instruction != expected:
        error = EnvError(
            f"{name}: task {task.id} announces {task.instruction[:200]!r}, "
            f"but its parameters reward {expected[:200]!r}"
        )
        error.retryable = False
        raise error


class NeverRewritten:
    """Base of families whose tasks a language model cannot change; the ladder may still replace them."""

    name: str

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:  # noqa: ARG002
        """Nothing to choose from, so no task is ever rewritten."""
        return RewriteMenu(description=task.instruction)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:  # noqa: ARG002
        """Refuse.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{self.name}: tasks are generated, not rewritten; set adaptation.controller to 'ladder' or 'none'"
        )

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:  # noqa: ARG002
        """Nothing is proved, so nothing passes."""
        return [CheckResult(name="rewritable", passed=False, detail=f"{self.name} is not")]
