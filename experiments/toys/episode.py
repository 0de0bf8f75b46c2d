"""An episode of a toy game."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Episode:
    """States, the admissible words and the chosen word in each, and the result."""

    states: list[str] = field(default_factory=list)
    choices: list[tuple[str, ...]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    success: bool = False
    score: float | None = None


Steps = list[tuple[Episode, int, float]]
"""An episode, a turn of it, and its advantage."""
