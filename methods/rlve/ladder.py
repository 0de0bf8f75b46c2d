"""The ladder: a window of difficulty levels that moves up with the policy.

Tasks are drawn evenly from the levels low..high. Only groups of the top level count, all of them, before any filter; when
enough of their rollouts were measured, the window moves up if nearly all of them succeeded, and counting begins again
either way. The window never moves down. Results of lower levels, also late ones from before a move, count nothing.

Source: arXiv 2511.07317 (RLVE), section 2 and its released code: 4 levels, 0.9 of 8 prompts x 16 rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydantic import Field

from triforge.algorithms.filters import check_counts
from triforge.algorithms.registry import Options


class LadderRule(Options):
    """When the window of levels moves."""

    levels: int = Field(4, ge=1)
    """Levels that the window holds."""
    threshold: float = Field(0.9, gt=0.0, le=1.0)
    """Success at the top level that moves a window up."""
    rollouts: int = Field(128, ge=1)
    """Measured rollouts of the top level before that is decided."""
    start: int = Field(0, ge=0)
    """Top level at the beginning of the run."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where the window is, and what was counted at its top since it was last decided."""

    rule: LadderRule = field(default_factory=LadderRule)
    high: int = -1
    counted: int = 0
    correct: int = 0

    def __post_init__(self) -> None:
        if self.high < 0:
            object.__setattr__(self, "high", self.rule.start)

    @property
    def low(self) -> int:
        """The lowest level that is drawn."""
        return max(0, self.high - self.rule.levels + 1)

    def level(self, seed: int) -> int:
        """Return a level of the window, evenly over seeds."""
        return self.low + seed % (self.high - self.low + 1)

    def after(self, level: int | None, successes: int, measured: int) -> Ladder:
        """Return the ladder after a group of the level; None is a task of no known level, which counts nothing."""
        check_counts(successes, measured)
        if level != self.high:
            return self
        counted, correct = self.counted + measured, self.correct + successes
        if counted < self.rule.rollouts:
            return replace(self, counted=counted, correct=correct)
        raised = correct >= self.rule.threshold * counted
        return Ladder(self.rule, high=self.high + raised)
