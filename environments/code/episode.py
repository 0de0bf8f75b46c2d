"""One episode: the policy writes a program, hidden tests decide."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from environments.code.execution import TOTAL_S, program_in, score
from environments.code.params import ProgramParams
from triforge.environments.kit import Strict
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.sandbox.client import Sandbox

GUIDE: Final = (
    "Think first, then write the whole program in Python 3 in one block that begins with ```python and ends with ```. "
    "The last such block of your answer counts. Only the standard library is there."
)
_NO_PROGRAM: Final = "There is no block of Python in your answer."


class PlayOptions(Strict):
    """Options of a run; README.md explains each."""

    turns: int = Field(default=1, ge=1, le=20)
    every_test: bool = True
    total_s: float = Field(default=TOTAL_S, ge=1.0, le=3600.0)
    guide: bool = True


class Code:
    """One problem."""

    def __init__(
        self, problem: ProgramParams, options: PlayOptions, announced: str, sandbox: Sandbox
    ) -> None:
        self.done = False
        self._problem, self._options, self._announced = problem, options, announced
        self._sandbox = sandbox
        self._left = options.turns

    def start(self) -> Reset:
        system = GUIDE if self._options.guide else ""
        return Reset(observation=Observation(text=self._announced), system=system)

    async def play(self, response: str) -> StepResult:
        program = program_in(response)
        share, text, over = 0.0, _NO_PROGRAM, self._left == 1
        if program is not None:
            share, text, over = await self._judge(program)
        self._left -= 1
        self.done = over
        return StepResult(
            observation=Observation(text=text),
            action=program or "",
            action_valid=program is not None,
            done=over,
            success=share == 1.0,
            share=share if over else None,
        )

    async def _judge(self, program: str) -> tuple[float, str, bool]:
        """Return the share of tests that the program passes, the text for the policy, and whether the episode is over."""
        if self._left > 1:
            shown = await score(self._sandbox, self._problem, program, public=True)
            if not shown.solved:
                text = f"{shown.passed} of {shown.tests} examples are right. {shown.trouble}"
                return 0.0, text, False
        every, total = self._options.every_test, self._options.total_s
        result = await score(self._sandbox, self._problem, program, every=every, total_s=total)
        if result.solved:
            return 1.0, "All tests are passed.", True
        share = result.passed / result.tests if every else 0.0
        return share, f"A test is not passed: {result.trouble}.", True
