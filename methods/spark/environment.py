"""Environments that verify the policy's answers to questions about finished rollouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from methods.spark.questions import Question
from triforge.rollout.live import MakeEnvironment
from triforge.rollout.protocols import Environment, Observation, Reset, StepResult
from triforge.rollout.verdicts import ANSWERS, parse_vote
from triforge.types import Task


def environment(extra: Any, make: MakeEnvironment) -> Environment:
    """Return the environment of a question; `make` makes that of the task."""
    question = Question.model_validate(extra)
    return Judging(question) if question.verdict else Reflecting(make(), question.text)


class Judging:
    """One question, won with the right verdict."""

    def __init__(self, question: Question) -> None:
        self._question = question

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Show the question."""
        seen = Observation(text=self._question.text, admissible=tuple(ANSWERS.values()))
        return Reset(observation=seen)

    async def step(self, response: str) -> StepResult:
        """Compare the verdict with the outcome that the environment measured."""
        verdict = parse_vote(response)
        return StepResult(
            observation=Observation(text=""),
            action=str(verdict) if verdict else "",
            action_valid=verdict != 0,
            done=True,
            success=verdict == self._question.verdict,
        )

    async def close(self) -> None:
        """Do nothing."""


class Reflecting:
    """The task once more, after a failed attempt; the environment decides whether it is mended."""

    def __init__(self, environment: Environment, attempt: str) -> None:
        self._environment, self._attempt = environment, attempt
        self.step, self.close = environment.step, environment.close

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Start the task, and show the attempt."""
        reset = await self._environment.reset(task, seed=seed)
        seen = reset.observation
        return replace(reset, observation=replace(seen, text=f"{seen.text}{self._attempt}"))
