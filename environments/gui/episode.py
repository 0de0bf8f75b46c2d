"""One episode at a screen: the same turns, ends and verdicts for all computers."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

from prometheus_client import Counter
from pydantic import Field, JsonValue

from environments.gui.actions import Action, MalformedError, call, read_command, read_computer_use
from environments.gui.evaluators import Evaluator
from triforge.environments.kit import Strict
from triforge.errors import EnvError
from triforge.rollout.protocols import Observation, Reset, StepResult

MALFORMED: Final = Counter(
    "triforge_env_adapter_malformed_actions_total",
    "Responses that were no action, by family and reason.",
    ["family", "reason"],
)

Format = Literal["command", "computer_use"]
_READERS: Final[dict[Format, Callable[[str], Action]]] = {
    "command": read_command,
    "computer_use": read_computer_use,
}
COMPUTER_USE_GUIDE: Final = (
    "You control a computer by its screen. Each turn you see a screenshot and give one action. Write one line "
    '"Action: ..." that says what you do, then one call:\n'
    + call("left_click", coordinate=[500, 300]).partition("\n")[2]
    + "\nCoordinates run from 0 to 999 from left to right and from top to bottom. Actions and their arguments: "
    "left_click, right_click, middle_click, double_click, mouse_move, left_click_drag (coordinate); "
    'type (text); key (keys, a list such as ["ctrl", "c"]); scroll (pixels, positive is up; coordinate); '
    "wait (time, in seconds); terminate (status: success or failure) when you have finished or see that it cannot "
    "be done."
)
COMMAND_GUIDE: Final = (
    "You use a computer with a terminal. Each turn give one command: run LINE (types a line into the terminal and enters "
    "it), click X Y (0 to 999), press KEY, scroll PIXELS, wait, done, fail. Answer with the command only."
)
_VERIFY_PAUSE_S: Final = 0.1


class ReadOptions(Strict):
    """Options of reading responses; the READMEs of the families explain each."""

    actions: Format = "computer_use"
    malformed_limit: int = Field(default=3, ge=0, le=1000)
    guide: bool = True


class ScreenOptions(ReadOptions):
    """Options of all families with a computer."""

    verify_s: float = Field(default=2.0, ge=0.0, le=60.0)


class ScreenEpisode(ABC):
    """Reads responses as actions, counts turns and writes results; subclasses perform the actions."""

    def __init__(self, family: str, horizon: int, options: ReadOptions, guide: str) -> None:
        self.done = False
        self._family, self._horizon, self._limit = family, horizon, options.malformed_limit
        self._read = _READERS[options.actions]
        guide = guide if options.actions == "command" else COMPUTER_USE_GUIDE
        self._guide = guide if options.guide else ""
        self._turns = self._malformed = 0

    def play(self, response: str) -> StepResult:
        try:
            action = self._read(response)
        except MalformedError as error:
            return self._refuse(error.reason, f"malformed: {error}", "")
        return self._act(action)

    @abstractmethod
    def _act(self, action: Action) -> StepResult:
        """Perform the action and return one of the results below."""

    @abstractmethod
    def _observe(self, remark: str) -> Observation:
        """Return the present observation."""

    def _refuse(self, reason: str, remark: str, action: str) -> StepResult:
        """Return the result of a malformed action."""
        MALFORMED.labels(self._family, reason).inc()
        self._malformed += 1
        return self._after(remark, action, valid=False)

    def _after(self, remark: str, action: str, *, valid: bool) -> StepResult:
        """Return the result of an action that decides nothing, unless it was the last turn."""
        self._turns += 1
        if self._limit and self._malformed >= self._limit:
            self.done, remark = True, f"Failed: {self._malformed} malformed actions."
        elif self._turns >= self._horizon:
            self.done, remark = True, f"Failed: all {self._horizon} steps are used up."
        return self._result(remark, action, valid=valid, label=None if valid else -1)

    def _end(self, action: str, *, success: bool, remark: str) -> StepResult:
        """Return the result of an action that decides the episode."""
        self.done = True
        return self._result(remark, action, success=success, label=1 if success else -1)

    def _result(
        self,
        remark: str,
        action: str,
        *,
        label: Literal[-1, 1] | None,
        valid: bool = True,
        success: bool = False,
    ) -> StepResult:
        return StepResult(
            observation=self._observe(remark),
            action=action,
            action_valid=valid,
            done=self.done,
            success=success,
            label=label,
        )


class Computer(Protocol):
    """A running computer. Any call may raise `EnvError`: it broke, and the episode is not measured."""

    def act(self, action: Action) -> None:
        """Perform an action by pixel or key, never `terminate` or one on an element."""

    def screenshot(self) -> bytes:
        """Return the screen as a PNG file."""

    def listing(self) -> str:
        """Return the computer's contents as text, for agents without images."""
        return ""

    def overrun(self) -> str:
        """Return why the episode cannot go on, as a sentence for the agent; empty while it can."""
        return ""

    def get(self, spec: Mapping[str, JsonValue]) -> JsonValue:
        """Return a value that an evaluator names."""

    def settle(self) -> None:
        """Do the task's steps between the agent's last action and the verifier."""

    def stop(self) -> None:
        """Free everything. Idempotent, from any thread."""


class ComputerEpisode(ScreenEpisode):
    """One task being played.

    `begin` starts the computer with the task laid out and may take its time; `sees` and `reads` are whether observations carry a
    screenshot and the computer's listing; `abandon` is called when the episode is left, also before its computer has started.
    """

    def __init__(
        self,
        family: str,
        instruction: str,
        evaluator: Evaluator,
        begin: Callable[[], Computer],
        horizon: int,
        options: ScreenOptions,
        *,
        sees: bool = True,
        reads: bool = False,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(family, horizon, options, COMMAND_GUIDE)
        self._instruction = instruction
        self._evaluator = evaluator
        self._begin = begin
        self._options = options
        self._sees, self._reads = sees, reads
        self._abandon = abandon
        self._lock = threading.Lock()
        self._left = False
        self._computer: Computer | None = None

    def start(self) -> Reset:
        computer = self._begin()
        with self._lock:
            if not self._left:
                self._computer = computer
        if self._left:
            computer.stop()
            raise EnvError(f"{self._family}: the episode was closed while its computer started")
        return Reset(observation=self._observe(f"task: {self._instruction}"), system=self._guide)

    def leave(self, *, sound: bool) -> None:  # noqa: ARG002
        self.done = True
        with self._lock:
            self._left = True
            computer, self._computer = self._computer, None
        if computer is not None:
            computer.stop()
        self._abandon()

    def _act(self, action: Action) -> StepResult:
        if action.ref is not None:
            return self._refuse("no_element", "there are no numbered elements", str(action))
        if action.kind == "terminate":
            return self._judge(action)
        computer = self._running()
        computer.act(action)
        if overrun := computer.overrun():
            return self._end(str(action), success=False, remark=overrun)
        return self._after("", str(action), valid=True)

    def _running(self) -> Computer:
        computer = self._computer
        if computer is None:
            raise EnvError(f"{self._family}: the episode is closed")
        return computer

    def _judge(self, action: Action) -> StepResult:
        """Verify the task after the agent has finished, or has given it up as infeasible.

        An episode that runs out of steps is a failure, whatever its files hold; so is one that is given up and feasible.
        """
        if self._evaluator.infeasible or not action.success:
            success = self._evaluator.infeasible and not action.success
        else:
            computer = self._running()
            computer.settle()
            deadline = time.monotonic() + self._options.verify_s
            while not (success := self._evaluator.score(computer.get) == 1.0):
                if time.monotonic() >= deadline:
                    break
                time.sleep(_VERIFY_PAUSE_S)  # the last input may still be at work
        return self._end(str(action), success=success, remark="Done." if success else "Failed.")

    def _observe(self, remark: str) -> Observation:
        computer = self._running()
        listed = computer.listing() if self._reads else ""
        return Observation(
            text="\n".join(part for part in (remark, listed) if part) or "The screen now.",
            images=(computer.screenshot(),) if self._sees else (),
        )
