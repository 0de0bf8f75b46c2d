"""Shipped fakes of the three protocols: a sampler, a judge and an environment family, small enough to check by eye."""

# ruff: noqa: ARG002 - a fake need not heed all that its protocol hands it

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from triforge.errors import EnvError, InputError, TriforgeError
from triforge.rollout.protocols import Observation, Reset, RewriteMenu, StepResult, TaskDraft
from triforge.types import (
    CheckResult,
    Direction,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    Params,
    Task,
    VersionSpan,
)

FAKE_LOGPROB = -0.5
_MAX_TARGET = 20


class FakeTokens:
    """A tokenizer that gives every new word the next id, from 1 on. Id 0 ends a turn."""

    END = 0

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"<end>": self.END}
        self._words: list[str] = ["<end>"]

    def encode(self, text: str) -> tuple[int, ...]:
        """One id a word."""
        for word in text.split():
            if word not in self._ids:
                self._ids[word] = len(self._words)
                self._words.append(word)
        return tuple(self._ids[word] for word in text.split())

    def decode(self, ids: Sequence[int]) -> str:
        """The words, without turn ends."""
        return " ".join(self._words[i] for i in ids if i != self.END)


Answer = str | TriforgeError
Answers = Callable[[GenerateRequest], Answer] | Sequence[Answer]


class FakeGenerate:
    """A `Generate` with given answers. `requests` are those so far, `tokens` its vocabulary.

    Args:
        answers: one a request, in turn (the last one for ever), or a function of the request; an error is raised.
        finish: why every answer ends; `stop` adds the turn's end to the ids.
    """

    def __init__(
        self,
        answers: Answers,
        *,
        version: int = 0,
        finish: Literal["stop", "length", "abort"] = "stop",
    ) -> None:
        if not callable(answers) and not answers:
            raise ValueError("answers: expected at least one")
        self.version = version
        self.requests: list[GenerateRequest] = []
        self.tokens = FakeTokens()
        self._answers = answers
        self._finish = finish

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Answer; all n samples are the same."""
        await asyncio.sleep(0)  # a real one gives way to others, too
        answer = self._next(request)
        self.requests.append(request)
        if isinstance(answer, TriforgeError):
            raise answer
        new = [i for m in request.messages for i in self.tokens.encode(f"{m.role}: {m.text}")]
        ids = self.tokens.encode(answer) + ((FakeTokens.END,) if self._finish == "stop" else ())
        output = GenerateOutput(
            text=answer,
            ids=ids,
            logprobs=(FAKE_LOGPROB,) * len(ids),
            versions=(VersionSpan(version=self.version, start=0, end=len(ids)),),
            finish=self._finish,
        )
        return GenerateReply(prompt_ids=(*request.prefix_ids, *new), outputs=(output,) * request.n)

    def _next(self, request: GenerateRequest) -> Answer:
        if callable(self._answers):
            return self._answers(request)
        return self._answers[min(len(self.requests), len(self._answers) - 1)]


class FakeEnvironment:
    """Count from 0 to a target by saying `up` and `down`; reaching it is success, five more than it failure.

    The step (from 0) `raise_at` breaks, and `hang_at` never returns.
    """

    def __init__(self, *, raise_at: int | None = None, hang_at: int | None = None) -> None:
        self._raise_at = raise_at
        self._hang_at = hang_at
        self._target: int | None = None
        self._count = 0
        self._steps = 0
        self._over = False
        self.closed = False

    async def reset(self, task: Task, *, seed: int) -> Reset:
        """Start at 0; the seed changes nothing."""
        if self._target is not None or self.closed:
            raise EnvError("an environment is used once; make a new one")
        self._target = int(str(task.params["target"]))
        return Reset(observation=self._observe(f"{task.instruction} The count is 0."))

    async def step(self, response: str) -> StepResult:
        """Count; anything but the two words is invalid and changes nothing."""
        if self._target is None or self._over or self.closed:
            raise EnvError("the episode has not begun or is over")
        if self._steps == self._raise_at:
            raise EnvError(f"the fake environment was told to break at step {self._steps}")
        if self._steps == self._hang_at:
            await asyncio.Event().wait()
        self._steps += 1
        move = {"up": 1, "down": -1}.get(response.strip())
        before = abs(self._target - self._count)
        self._count += move or 0
        success = self._count == self._target
        self._over = success or self._steps >= self._target + 5
        return StepResult(
            observation=self._observe(f"The count is {self._count}."),
            action=response.strip() if move else "",
            action_valid=move is not None,
            done=self._over,
            success=success,
            label=1 if abs(self._target - self._count) < before else -1,
        )

    async def close(self) -> None:
        """End it."""
        self.closed = True

    @staticmethod
    def _observe(text: str) -> Observation:
        return Observation(text=text, admissible=("up", "down"))


class FakeFamily:
    """An `EnvironmentFamily` of counting tasks. `made` are its environments; the arguments are theirs."""

    name = "fake"

    def __init__(self, *, raise_at: int | None = None, hang_at: int | None = None) -> None:
        self.raise_at = raise_at
        self.hang_at = hang_at
        self.made: list[FakeEnvironment] = []

    def validate(self, params: Params) -> TaskDraft:
        """`target` is how far to count, 1 to 20."""
        _only(params, "target")
        target = params.get("target")
        if type(target) is not int or not 1 <= target <= _MAX_TARGET:
            raise InputError(f"target: given {target!r}, expected an integer in [1, {_MAX_TARGET}]")
        return TaskDraft(params={"target": target}, instruction=f"Count to {target}.")

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Targets 1, 2, 3, ... from the seed on. The one option is `most`, the largest target."""
        _only(options, "most")
        most = int(str(options.get("most", 3)))
        return [{"target": (seed + index) % most + 1} for index in range(count)]

    def make(self, options: Params) -> FakeEnvironment:
        """A fresh environment; there are no options."""
        _only(options)
        self.made.append(FakeEnvironment(raise_at=self.raise_at, hang_at=self.hang_at))
        return self.made[-1]

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """As many `up` as the target says."""
        return ["up"] * int(str(task.params["target"]))

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """All higher targets are harder, all lower ones easier."""
        now = int(str(task.params["target"]))
        found = range(now + 1, _MAX_TARGET + 1) if direction == "harder" else range(1, now)
        targets = tuple(str(target) for target in found)
        return RewriteMenu(
            description=f"The task is to count to {now}.",
            fields={"target": targets},
            combinations=tuple({"target": target} for target in targets),
        )

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """The task with the answer's target."""
        text = answer.get("target", "")
        if not text.isdecimal():
            raise InputError(f"target: given {text!r}, expected a number")
        return self.validate({"target": int(text)})

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """It differs, and its instruction is its own."""
        own = self.validate(candidate.params).instruction == candidate.instruction
        return [
            CheckResult(name="differs", passed=candidate.params != parent.params),
            CheckResult(name="instruction_matches", passed=own),
        ]


def _only(given: dict[str, Any], *known: str) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{name}: unknown field; known are {list(known)}")
