"""The environment that the rollout workers play: the policy writes a program, hidden tests decide."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pydantic import Field

from environments.code.execution import TOTAL_S, program_in, score
from environments.code.params import FunctionParams, ProgramParams, instruction, read_params
from triforge.environments.kit import Strict, expect_announced
from triforge.errors import EnvError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.sandbox.client import Sandbox
from triforge.types import Task

GUIDE: Final = (
    "Think first, then write the whole program in Python 3 in one block that begins with ```python and ends with ```. "
    "The last such block of your answer counts. Only the standard library is there."
)
_NO_PROGRAM: Final = "There is no block of Python in your answer."
_READING: Final = ThreadPoolExecutor(1, thread_name_prefix="code-reading")
"""A recipe takes milliseconds to follow; one thread of our own, so that 64 episodes do not hold the loop or its threads."""


class PlayOptions(Strict):
    """How a problem is played; README.md explains each option."""

    turns: int = Field(default=1, ge=1, le=20)
    every_test: bool = True
    total_s: float = Field(default=TOTAL_S, ge=1.0, le=3600.0)
    guide: bool = True
    tester: bool = False


class Code:
    """One problem."""

    def __init__(self, options: PlayOptions, sandbox: Sandbox) -> None:
        self._options = options
        self._sandbox = sandbox
        self._task: ProgramParams | FunctionParams | None = None
        self._used = False
        self._left = options.turns

    async def reset(self, task: Task, *, seed: int) -> Reset:  # noqa: ARG002
        if self._used:
            raise EnvError("code: an environment plays one episode; make a fresh one to reset")
        self._used = True
        loop = asyncio.get_running_loop()
        self._task = await loop.run_in_executor(_READING, _read, task)
        system = GUIDE if self._options.guide else ""
        return Reset(observation=Observation(text=task.instruction), system=system)

    async def step(self, response: str) -> StepResult:
        task = self._task
        if task is None or self._left == 0:
            raise EnvError("code: step after the end or before reset; the episode is not running")
        program = program_in(response)
        share, text, over = 0.0, _NO_PROGRAM, self._left == 1
        if program is not None:
            share, text, over = await self._judge(task, program)
        self._left = 0 if over else self._left - 1
        return StepResult(
            observation=Observation(text=text),
            action=program or "",
            action_valid=program is not None,
            done=over,
            success=share == 1.0,
            share=share if over else None,
        )

    async def close(self) -> None:
        self._used = True
        self._task = None

    async def _judge(
        self, task: ProgramParams | FunctionParams, program: str
    ) -> tuple[float, str, bool]:
        """The share of tests that the program passes, what is said of it, and whether that was the end."""
        if self._left > 1:
            shown = await score(self._sandbox, task, program, public=True)
            if not shown.solved:
                return (
                    0.0,
                    f"{shown.passed} of {shown.tests} examples are right. {shown.trouble}",
                    False,
                )
        every, total = self._options.every_test, self._options.total_s
        found = await score(self._sandbox, task, program, every=every, total_s=total)
        if found.solved:
            return 1.0, "All tests are passed.", True
        share = found.passed / found.tests if every else 0.0
        return share, f"A test is not passed: {found.trouble}.", True


def _read(task: Task) -> ProgramParams | FunctionParams:
    given = read_params(task.params)
    expect_announced("code", task, instruction(given))
    return given
