"""What a task is, which tasks are generated, and how the screen is shown and played."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from environments.gui.evaluators import Evaluator
from triforge.environments.parsing import Strict

Sort = Literal["create", "write", "rename", "move", "delete", "setting"]
SORTS: tuple[Sort, ...] = ("create", "write", "rename", "move", "delete", "setting")


class SetupStep(Strict):
    """A step before the episode: `write_file` (path, content) or `make_folder` (path), below the home folder."""

    type: Literal["write_file", "make_folder"]
    parameters: dict[str, str]


class DesktopTask(Strict):
    """The parameters of a task, in OSWorld's shape.

    Attributes:
        id: of the author's choosing.
        instruction: what the agent is told.
        config: what is laid out before it begins.
        evaluator: how it is verified; see README.md for what `result` and `expected` may ask for.
        horizon: steps until the episode ends as a failure.
        solution: commands that solve it in the terminal, if known; no agent sees them.
    """

    id: str = Field(default="", max_length=200)
    instruction: str = Field(min_length=1, max_length=4000)
    config: list[SetupStep] = Field(default_factory=list, max_length=200)
    evaluator: Evaluator
    horizon: int = Field(default=15, ge=1, le=200)
    solution: list[str] = Field(default_factory=list, max_length=50)


class Knobs(Strict):
    """What tasks are generated.

    Attributes:
        sorts: kinds of task, drawn evenly; naming one twice doubles its share.
        files: how many other files lie about, lowest and highest.
        horizon: steps until an episode ends as a failure.
    """

    sorts: list[Sort] = Field(default_factory=lambda: list(SORTS), min_length=1)
    files: list[int] = Field(default_factory=lambda: [1, 4], min_length=2, max_length=2)
    horizon: int = Field(default=15, ge=1, le=200)


class PlayOptions(Strict):
    """How the screen is shown and how responses are read.

    Attributes:
        observe: a screenshot, the names of files and folders as text, or both.
        actions: short commands, or calls in the computer-use format.
        width: of the screen in pixels.
        height: of the screen in pixels.
        malformed_limit: this many malformed actions end the episode as a failure; 0 never does.
        settle_s: seconds to wait at most for the shell to answer a line.
        verify_s: seconds in which the verifier may still come true after the agent has said that it is done.
        disk_limit: bytes in the agent's files from which the episode ends as a failure.
        guide: whether the episode starts with a system message that explains the actions.
    """

    observe: Literal["screenshot", "files", "both"] = "screenshot"
    actions: Literal["command", "computer_use"] = "computer_use"
    width: int = Field(default=640, ge=320, le=1920)
    height: int = Field(default=480, ge=240, le=1080)
    malformed_limit: int = Field(default=3, ge=0, le=1000)
    settle_s: float = Field(default=5.0, ge=0.0, le=60.0)
    verify_s: float = Field(default=2.0, ge=0.0, le=60.0)
    disk_limit: int = Field(default=50_000_000, ge=1_000_000, le=10**9)
    guide: bool = True


__all__ = ["SORTS", "DesktopTask", "Knobs", "PlayOptions", "SetupStep", "Sort"]
