"""One MiniWoB episode as plain synchronous code; `gui.shell.Screen` makes an environment of it."""

from __future__ import annotations

import re
from typing import Final, Literal

from environments.gui.actions import Malformed
from environments.gui.turns import COMPUTER_USE_GUIDE, READERS, Turns
from environments.miniwob.browsers import Browsers, Seat
from environments.miniwob.dom import listing
from environments.miniwob.options import PlayOptions, Problem
from environments.miniwob.page import Look, Page
from triforge.environments.episode import expect_announced
from triforge.errors import EnvError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import Task

_COMMAND_GUIDE: Final = (
    "You use a web page. Each turn you see its elements, each with a number, and give one command: click NUMBER, "
    "type NUMBER TEXT, press KEY, scroll PIXELS, wait, done, fail. Answer with the command only."
)


class MiniWobEpisode:
    """One problem being played.

    Args:
        task: as stored; it announces what its page says.
        problem: its parameters.
        options: how the page is shown and responses are read.
        browsers: where its browser comes from.
    """

    def __init__(
        self, task: Task, problem: Problem, options: PlayOptions, browsers: Browsers
    ) -> None:
        self.done = False
        self._task = task
        self._problem = problem
        self._options = options
        self._seat = Seat(browsers, options.browsers)
        self._shown: tuple[Page, Look] | None = None
        self._turns = Turns(
            "miniwob", horizon=problem.horizon, malformed_limit=options.malformed_limit
        )

    def start(self) -> Reset:
        """Open the page."""
        page = Page(self._seat.browser(), self._problem.task, self._problem.seed)
        look = page.look()
        expect_announced("miniwob", self._task, look.said)
        self._shown = page, look
        return Reset(observation=self._observe(f"task: {look.said}"), system=self._guide())

    def play(self, response: str) -> StepResult:
        """Play one response."""
        action = READERS[self._options.actions](response)
        if isinstance(action, Malformed):
            self._turns.take(action.reason)
            return self._after(f"malformed: {action.sentence}", action="", valid=False)
        if action.kind == "terminate":
            return self._given_up(str(action))
        page, look = self._page_and_look()
        if not page.act(action, look.nodes):
            self._turns.take("no_element")
            return self._after(f"there is no element {action.ref}", str(action), valid=False)
        self._turns.take()
        self._shown = page, page.look()
        return self._after("", str(action), valid=True)

    def leave(self, *, sound: bool) -> None:
        """Give the browser back; one that is still at work is ended. Idempotent."""
        self.done = True
        self._seat.leave(sound=sound)

    def _page_and_look(self) -> tuple[Page, Look]:
        if self._shown is None:
            raise EnvError("miniwob: the page was never opened")
        return self._shown

    def _given_up(self, action: str) -> StepResult:
        """The agent says that it has finished. A page that is done ends the episode by itself, so this one is not."""
        self._turns.take()
        self.done = True
        return StepResult(
            observation=self._observe("Failed: the page does not count the task as done."),
            action=action,
            action_valid=True,
            done=True,
            success=False,
            label=-1,
        )

    def _after(self, remark: str, action: str, *, valid: bool) -> StepResult:
        _, look = self._page_and_look()
        success = look.over and look.raw >= self._options.success_at
        said = self._turns.over
        if look.over:
            said = "Done." if success else f"Failed: the page gives {look.raw:g}."
        self.done = bool(said)
        label: Literal[-1, 1] | None = None
        if look.over or not valid:
            label = 1 if success else -1
        return StepResult(
            observation=self._observe(said or remark),
            action=action,
            action_valid=valid,
            done=self.done,
            success=success,
            label=label,
        )

    def _observe(self, remark: str) -> Observation:
        page, look = self._page_and_look()
        listed = "" if self._options.observe == "screenshot" or self.done else listing(look.nodes)
        images: tuple[bytes, ...] = ()
        if self._options.observe != "elements":
            images = (page.screenshot(self._options.scale),)
        return Observation(
            text="\n".join(part for part in (remark, listed) if part) or "The page is empty.",
            admissible=() if self.done else self._commands(look),
            images=images,
        )

    def _commands(self, look: Look) -> tuple[str, ...]:
        """Commands that do something: every element clicked, every quoted word typed into every field."""
        if self._options.actions != "command":
            return ()
        shown = [node for node in look.nodes if node.shown and node.ref > 0]
        words = [word for word in re.findall(r'"([^"\n]+)"', look.said) if word.isprintable()]
        typed = [f"type {node.ref} {word}" for node in shown if node.is_field for word in words]
        return tuple(dict.fromkeys([*(f"click {node.ref}" for node in shown), *typed]))

    def _guide(self) -> str:
        if not self._options.guide:
            return ""
        return _COMMAND_GUIDE if self._options.actions == "command" else COMPUTER_USE_GUIDE


__all__ = ["MiniWobEpisode"]
