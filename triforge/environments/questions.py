"""Families whose tasks are one question with a verifiable answer, from a suite in a worker process."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from prometheus_client import Counter
from pydantic import Field

from triforge.environments.kit import (
    AnswerOptions,
    Family,
    Marked,
    first_valid,
    parse_model,
    part_of,
    same_words,
    wrapped,
)
from triforge.environments.worker import TooSlowError
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, StepResult, TaskDraft
from triforge.types import Params, reported

_log = logging.getLogger(__name__)

ENDLESS = Counter(
    "triforge_env_adapter_endless_answers_total",
    "Answers on which a verifier used up its processor time.",
    ["family"],
)

_DRAWS: Final = 10  # for one question; a suite may refuse some of its own levels
_TRY_AGAIN: Final = "That is not right. Try again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question: its text, an answer that the suite accepts if it knows one, and its kind."""

    text: str
    gold: str | None
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """The suite's grade of an answer: its score, whether it solves the question, and whether it is readable.

    `share` is the solved share of the question, in [0, 1], if it is not the score itself.
    """

    score: float
    solved: bool
    readable: bool
    share: float | None = None


NO_ANSWER: Final = Grade(score=0.0, solved=False, readable=False)


class QuestionOptions(AnswerOptions):
    r"""The options of questions: the answer is in the last `<answer>` tag or `\boxed{}`, and `tries` answers are allowed.

    With `graded` the score of an episode is the share of the question that the last answer solves.
    """

    answer: Marked = "tag"
    tries: int = Field(default=1, ge=1, le=100)
    graded: bool = False


class QuestionFamily(Family[Params, QuestionOptions]):
    """A family of questions; the suite implements `ask` and `grade`, which may block.

    Attributes:
        listed: the option of the generator that lists the kinds of questions.
    """

    listed: str
    play_options = QuestionOptions
    never_blocks = True  # episodes call the worker from the family's own thread

    def __init__(self) -> None:
        # the worker answers one question at a time, so further threads would only wait
        self.blocks = ThreadPoolExecutor(1, thread_name_prefix=self.name)

    @abstractmethod
    def ask(self, params: Params) -> Question:
        """Return the question of checked parameters; the same each time."""

    @abstractmethod
    def grade(self, params: Params, answer: str) -> Grade:
        """Grade an answer."""

    @abstractmethod
    def names(self, wanted: Any) -> Sequence[str]:
        """Return the kinds of questions to draw from; `wanted` are the `generator_options`."""

    @abstractmethod
    def choose(self, rng: Random, wanted: Any, names: Sequence[str]) -> Params:
        """Draw the parameters of one question, which the suite may refuse."""

    def kinds(self, options: Params) -> Sequence[str]:
        """Return the kinds of questions that the generator draws from."""
        return self.names(parse_model(self.generator_options, options, f"{self.name} generate"))

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Draw `count` questions that the suite can make; a question that it refuses is drawn again.

        A refusal follows from the question alone, but slowness also from the machine. So a slow question ends the drawing,
        unless the option `redraw_slow` is set; then a seed may draw other questions on another machine.
        """
        wanted: Any = parse_model(self.generator_options, options, f"{self.name} generate")
        names = self.names(wanted)
        drawn: list[Params] = []
        check = self.validate if getattr(wanted, "redraw_slow", False) else self._checked

        def chosen(rng: Random) -> Params:
            drawn.append(self.choose(rng, wanted, names))
            return drawn[-1]

        def one(index: int) -> Params:
            rng = Random(f"{self.name} {seed} {index}")  # noqa: S311
            return first_valid(lambda: chosen(rng), check, _DRAWS)

        try:
            return [one(index) for index in range(count)]
        except TooSlowError as error:
            raise InputError(
                f"{self.name} generate: {error.detail}; drawn was {str(drawn[-1])[:300]}. Choose other kinds, an easier "
                "level, or redraw_slow (a seed then draws the same on equal machines only)"
            ) from error

    def read(self, params: Params) -> Params:
        """Read the parameters and fill in the defaults."""
        return parse_model(self.params, params, f"{self.name} params").model_dump(mode="json")

    def among(self, names: Sequence[str], known: Collection[str], where: str = "") -> Sequence[str]:
        """Return `names`, or all `known` ones if there are none; raise InputError for names that the suite does not know."""
        if unknown := sorted(set(names).difference(known)):
            raise InputError(
                f"{self.name} {where or f'generate: field {self.listed}'}: unknown {', '.join(unknown)}; "
                f"known are {', '.join(known)}"
            )
        return names or [*known]

    def of_kind(self, kind: str, options: Params) -> Params:
        """Return the options of questions of one kind."""
        return {**options, self.listed: [kind]}

    def asks(self, draft: TaskDraft, options: Params) -> str:  # noqa: ARG002
        """Return the question; several seeds may lead to it."""
        return same_words(draft.instruction)

    def write(self, given: Params) -> Params:
        """Return the parameters, which `read` has completed."""
        return given

    def instruction(self, given: Params) -> str:
        """Return the text of the question."""
        return self.ask(given).text

    def _checked(self, params: Params) -> TaskDraft:
        full = self.read(params)
        question = self.ask(full)
        return TaskDraft(params=full, instruction=question.text, kind=question.kind[:64])

    def validate(self, params: Params) -> TaskDraft:
        """Check a question by making it; refuse a question that takes the suite too long."""
        try:
            return self._checked(params)
        except TooSlowError as error:
            raise InputError(f"{error.detail}; choose an easier level") from error

    def begin(
        self, given: Params, options: QuestionOptions, announced: str, _seed: int
    ) -> QuestionEpisode:
        """Make the episode of a question."""
        return QuestionEpisode(self, given, announced, options)

    def solution(self, given: Params, options: QuestionOptions) -> Sequence[str] | None:
        """Return the suite's own answer, or None if it accepts none of its own."""
        answer = self.ask(given).gold
        return None if answer is None else [wrapped(answer, options.answer)]

    def at_level(self, level: int, options: Params) -> Params:
        """Return the options of questions of the suite's own difficulty level."""
        return {**options, "level": level}


class QuestionEpisode:
    """The episode of a question."""

    def __init__(
        self, family: QuestionFamily, given: Params, question: str, options: QuestionOptions
    ) -> None:
        self.done = False
        self._family = family
        self._given = given
        self._question = question
        self._options = options
        self._left = options.tries

    def start(self) -> Reset:
        """Show the question."""
        system = self._options.system("{answer}", "the answer")
        return Reset(observation=Observation(text=self._question), system=system)

    def play(self, response: str) -> StepResult:
        """Grade one answer."""
        answer = part_of(response, self._options.answer).strip()
        grade = self._grade(answer) if answer else NO_ANSWER
        self._left -= 1
        self.done = grade.solved or self._left == 0
        text = f"Score {grade.score:g}." if self.done else _TRY_AGAIN
        return StepResult(
            observation=Observation(text=text),
            action=answer[:2000],
            action_valid=grade.readable,
            done=self.done,
            success=grade.solved,
            score=_share(grade) if self.done and self._options.graded else None,
        )

    def _grade(self, answer: str) -> Grade:
        """Grade an answer. One that uses up the processor time is no answer; a busy machine is an EnvError."""
        try:
            return self._family.grade(self._given, answer)
        except TooSlowError as error:
            _log.warning("%s: %s", self._given, error.detail)
        ENDLESS.labels(self._family.name).inc()
        return NO_ANSWER


def _share(grade: Grade) -> float:
    share = grade.score if grade.share is None else grade.share
    return min(1.0, max(0.0, reported(share, "the suite gave the score")))
