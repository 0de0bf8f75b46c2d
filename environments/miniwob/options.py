"""What a task is, which tasks are generated, and how a page is shown and played."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from environments.miniwob.gold import SOLVED
from triforge.environments.parsing import Strict

MAX_SEED = 2**31 - 1


class Problem(Strict):
    """The parameters of a task.

    Attributes:
        task: name of the page, such as `click-test-2`.
        seed: of the page's own random numbers.
        horizon: steps until the episode ends as a failure.
        utterance: the page's sentence for this seed; read from the page when it is missing.
    """

    task: str = Field(min_length=1, max_length=64)
    seed: int = Field(ge=0, le=MAX_SEED)
    horizon: int = Field(default=10, ge=1, le=200)
    utterance: str = Field(default="", max_length=4000)


class Knobs(Strict):
    """What tasks are generated.

    Attributes:
        tasks: pages, drawn evenly; naming one twice doubles its share.
        horizon: steps until an episode ends as a failure.
    """

    tasks: list[str] = Field(default_factory=lambda: list(SOLVED), min_length=1)
    horizon: int = Field(default=10, ge=1, le=200)


class PlayOptions(Strict):
    """How a page is shown and how responses are read.

    Attributes:
        observe: what the agent sees: a list of the page's elements, a screenshot, or both.
        actions: short commands, or calls in the computer-use format.
        scale: how many times a screenshot is enlarged (1: 160 x 210 pixels).
        success_at: raw reward from which an episode that the page has ended counts as a success.
        malformed_limit: this many malformed or impossible actions end the episode as a failure; 0 never does.
        browsers: how many browsers one worker runs at most; further episodes wait.
        guide: whether the episode starts with a system message that explains the actions.
    """

    observe: Literal["elements", "screenshot", "both"] = "elements"
    actions: Literal["command", "computer_use"] = "command"
    scale: int = Field(default=1, ge=1, le=6)
    success_at: float = Field(default=1.0, gt=0.0, le=1.0)
    malformed_limit: int = Field(default=3, ge=0, le=1000)
    browsers: int = Field(default=4, ge=1, le=64)
    guide: bool = True
