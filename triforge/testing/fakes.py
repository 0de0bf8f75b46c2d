"""Fakes of the protocols, small enough to check by eye: a sampler, an environment family, an installed package."""

# ruff: noqa: ARG002 - a fake may ignore arguments of its protocol

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triforge.environments.registry import GROUP
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


Answer = str | TriforgeError
Answers = Callable[[GenerateRequest], Answer] | Sequence[Answer]


class FakeGenerate:
    """A `Generate` with given answers; every new word is the next token, and token 0 ends a turn.

    Args:
        answers: one for each request, in turn (the last one for ever), or a function of the request; an error is raised.

    Attributes:
        requests: those so far.
    """

    def __init__(self, answers: Answers, *, version: int = 0) -> None:
        if not callable(answers) and not answers:
            raise ValueError("answers: expected at least one")
        self.version = version
        self.requests: list[GenerateRequest] = []
        self._answers = answers
        self._ids = {"<end>": 0}

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Answer; all n samples are the same."""
        await asyncio.sleep(0)  # as a real one, let others run
        answer = self._next(request)
        self.requests.append(request)
        if isinstance(answer, TriforgeError):
            raise answer
        new = [i for m in request.messages for i in self._encode(f"{m.role}: {m.text}")]
        ids = (*self._encode(answer), 0)
        output = GenerateOutput(
            text=answer,
            ids=ids,
            logprobs=(FAKE_LOGPROB,) * len(ids),
            versions=(VersionSpan(version=self.version, start=0, end=len(ids)),),
            finish="stop",
        )
        return GenerateReply(prompt_ids=(*request.prefix_ids, *new), outputs=(output,) * request.n)

    def _encode(self, text: str) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in text.split()]

    def _next(self, request: GenerateRequest) -> Answer:
        if callable(self._answers):
            return self._answers(request)
        return self._answers[min(len(self.requests), len(self._answers) - 1)]


class FakeEnvironment:
    """A count from 0 to a target by `up` and `down`; reaching it is success, five steps more than it are failure.

    The step (from 0) `raise_at` raises.
    """

    def __init__(self, *, raise_at: int | None = None) -> None:
        self._raise_at = raise_at
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
        """Count; other words are invalid and change nothing."""
        if self._target is None or self._over or self.closed:
            raise EnvError("the episode has not begun or is over")
        if self._steps == self._raise_at:
            raise EnvError(f"the fake environment raises at step {self._steps}")
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
    """An `EnvironmentFamily` of counting tasks; `made` are its environments, which raise at `raise_at`."""

    name = "fake"

    def __init__(self, *, raise_at: int | None = None) -> None:
        self.raise_at = raise_at
        self.made: list[FakeEnvironment] = []

    def validate(self, params: Params) -> TaskDraft:
        """Check the `target` of the count, 1 to 20."""
        _only(params, "target")
        target = params.get("target")
        if type(target) is not int or not 1 <= target <= _MAX_TARGET:
            raise InputError(f"target: given {target!r}, expected an integer in [1, {_MAX_TARGET}]")
        return TaskDraft(params={"target": target}, instruction=f"Count to {target}.")

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        """Return targets 1, 2, 3, ... from the seed on. The one option is `most`, the largest target."""
        _only(options, "most")
        most = int(str(options.get("most", 3)))
        return [{"target": (seed + index) % most + 1} for index in range(count)]

    def make(self, options: Params) -> FakeEnvironment:
        """Return a fresh environment; there are no options."""
        _only(options)
        self.made.append(FakeEnvironment(raise_at=self.raise_at))
        return self.made[-1]

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:
        """Return as many `up` as the target."""
        return ["up"] * int(str(task.params["target"]))

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        """Return the higher targets if the task is to become harder, else the lower ones."""
        now = int(str(task.params["target"]))
        targets = range(now + 1, _MAX_TARGET + 1) if direction == "harder" else range(1, now)
        texts = tuple(str(target) for target in targets)
        return RewriteMenu(
            description=f"The task is to count to {now}.",
            fields={"target": texts},
            combinations=tuple({"target": target} for target in texts),
        )

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        """Return the task with the answer's target."""
        text = answer.get("target", "")
        if not text.isdecimal():
            raise InputError(f"target: given {text!r}, expected a number")
        return self.validate({"target": int(text)})

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """Check that it differs and that its instruction matches."""
        own = self.validate(candidate.params).instruction == candidate.instruction
        return [
            CheckResult(name="differs", passed=candidate.params != parent.params),
            CheckResult(name="instruction_matches", passed=own),
        ]


def _only(params: dict[str, Any], *known: str) -> None:
    for name in params:
        if name not in known:
            raise InputError(f"{name}: unknown field; known are {list(known)}")


def offer_family(folder: Path, name: str, target: str) -> None:
    """Write the metadata of an installed package that offers a family: `name = "target"`; `folder` must be on the path."""
    info = folder / f"{name}_package-1.0.dist-info"
    info.mkdir(parents=True)
    about = f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.0\n"
    (info / "METADATA").write_text(about, encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {target}\n", encoding="utf-8")
