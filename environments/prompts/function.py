"""A reward function, called as TRL calls its own: lists of prompts and completions, and a list a column, by keyword."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, Final

from pydantic import JsonValue

from triforge.environments import plugins
from triforge.environments.served import finished
from triforge.errors import (
    EnvError,
    InputError,
    ObservationError,
    TriforgeError,
    raised_at,
    raised_in,
)
from triforge.types import reported

Prompt = str | list[dict[str, str]]
_OURS: Final = ("prompts", "completions")
_GATHER_S: Final = 0.02  # before a call, for answers that come at the same time
_SLOW_S: Final = 5.0  # of a call


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to grade, with its prompt and the columns of its row."""

    prompt: Prompt
    text: str
    columns: Mapping[str, JsonValue]

    @property
    def shape(self) -> tuple[bool, frozenset[str]]:
        """The things that answers of one call have in common: the form of the prompt, and the names of the columns."""
        return isinstance(self.prompt, str), frozenset(self.columns)

    @property
    def keywords(self) -> dict[str, object]:
        """The values of this answer in the lists of a call."""
        turn = {"role": "assistant", "content": self.text}
        completion = self.text if isinstance(self.prompt, str) else [turn]
        return {**self.columns, "prompts": self.prompt, "completions": completion}


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function that grades completions, and its name in messages."""

    name: str
    function: Callable[..., Any]

    @classmethod
    def of(cls, path: str, what: str) -> RewardFunction:
        """Return the function at that path; an `InputError` names the field `what` if there is none."""
        return cls(path.rpartition("#")[2].partition("(")[0], plugins.load(path, what))

    def wanted(self, columns: Mapping[str, JsonValue], what: str) -> set[str]:
        """Return the keywords that it takes; an `InputError` names the field `what` if rows with these columns do not fit it."""
        given = {*_OURS, *columns}
        try:
            signature = inspect.signature(self.function)
            parameters = signature.parameters.values()
            all_of_them = any(one.kind is one.VAR_KEYWORD for one in parameters)
            wanted = given if all_of_them else given & {one.name for one in parameters}
            signature.bind(**dict.fromkeys(wanted))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{what}: {self.name}: {error}; it is called as TRL calls a reward function, NAME(prompts=[...], "
                f"completions=[...], COLUMN=[...]), with the columns of the row ({', '.join(columns) or 'this one has none'}), "
                "and answers [a number] a completion"
            ) from None
        return wanted

    def grade(self, answers: Sequence[Answer]) -> list[float | TriforgeError]:
        """Return the reward of each answer of one shape, or why it has none.

        All are graded in one call. If it fails, each half is graded by itself, so that an exception costs the answers that
        raise it and no others.
        """
        try:
            rewards = self._rewards(answers)
        except TriforgeError as error:
            if len(answers) == 1:
                return [error]
            half = len(answers) // 2
            return [*self.grade(answers[:half]), *self.grade(answers[half:])]
        return [*map(self._number, rewards)]

    def _rewards(self, answers: Sequence[Answer]) -> list[object]:
        rows = [answer.keywords for answer in answers]
        wanted = self.wanted(answers[0].columns, "reward")
        try:
            rewards = finished(self.function(**{n: [row[n] for row in rows] for n in wanted}))
            no_list = isinstance(rewards, str | bytes | Mapping) or not isinstance(
                rewards, Iterable
            )
            listed = [] if no_list else [*rewards]
        except Exception as error:
            text, raised = f"{type(error).__name__}: {error}{raised_at(error)}", raised_in(error)
            if isinstance(error, EnvError):  # of a function in another process
                text, raised = error.detail, error.raised
            failure = EnvError(f"{self.name}: {text}; the answer was {answers[0].text!r:.100}")
            failure.raised = raised
            raise failure from error
        if len(listed) != len(answers):
            raise ObservationError(
                f"{self.name}: returned {rewards!r:.80}, expected a list of one number a completion, here {len(answers)}"
            )
        return listed

    def _number(self, reward: object) -> float | TriforgeError:
        try:
            return reported(reward, f"{self.name}: returned a list of")
        except ValueError as error:
            return ObservationError(str(error))


class Grader:
    """The calls of a reward function: each has the answers that wait, and at most `concurrency` run at a time, in threads."""

    def __init__(self, function: RewardFunction, concurrency: int) -> None:
        self.function, self._concurrency = function, concurrency
        self._lock = Lock()
        self._waiting: list[tuple[Answer, Future[float]]] = []
        self._threads = 0
        self._calls: dict[float, int] = {}  # answers of each running call, by its start

    def grade(self, answer: Answer) -> Future[float]:
        """Return the answer's reward, when a call has graded it; an `EnvError` if it has none."""
        future: Future[float] = Future()
        with self._lock:
            self._waiting.append((answer, future))
        self._begin()
        return future

    def activity(self) -> str:
        """Describe a call that takes long; empty without one."""
        with self._lock:
            calls, waiting = dict(self._calls), len(self._waiting)
        seconds = time.monotonic() - min(calls, default=time.monotonic())
        if seconds < _SLOW_S:
            return ""
        at_once = "; to call it for several at a time: the option concurrency of the family"
        return (
            f"{self.function.name} grades {sum(calls.values())} answers, {len(calls)} calls at a time, the oldest since "
            f"{seconds:.0f} s; {waiting} answers wait{at_once * (self._concurrency == 1)}"
        )

    def _begin(self) -> None:
        with self._lock:
            if not self._waiting or self._threads == self._concurrency:
                return
            self._threads += 1
        # a daemon: a function that hangs does not keep its process alive
        Thread(target=self._call, daemon=True, name="reward").start()

    def _call(self) -> None:
        time.sleep(_GATHER_S)
        while batch := self._take():
            begun = [one for one in batch if one[1].set_running_or_notify_cancel()]
            started = time.monotonic()
            with self._lock:
                self._calls[started] = len(begun)
            try:
                results = self.function.grade([answer for answer, _ in begun]) if begun else []
            except BaseException as error:  # noqa: BLE001  such as SystemExit: episodes wait for each result
                results = [ObservationError(f"{self.function.name}: {error!r}")] * len(begun)
            with self._lock:
                del self._calls[started]
            for (_, future), result in zip(begun, results, strict=True):
                if isinstance(result, TriforgeError):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _take(self) -> list[tuple[Answer, Future[float]]]:
        """Take a share of the answers that wait, of one shape; without any, the thread ends."""
        with self._lock:
            waiting = [one for one in self._waiting if not one[1].cancelled()]
            share = -(-len(waiting) // self._concurrency)
            batch: list[tuple[Answer, Future[float]]] = []
            self._waiting = []
            for one in waiting:
                taken = len(batch) < share and one[0].shape == waiting[0][0].shape
                (batch if taken else self._waiting).append(one)
            self._threads -= not batch
            return batch
