"""One episode at a screen: the same turns, ends and verdicts whatever the computer is, and the asynchronous shell round it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

from prometheus_client import Counter
from pydantic import Field, JsonValue

from environments.gui.actions import Action, Malformed, call, read_command, read_computer_use
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
READERS: Final[dict[Format, Callable[[str], Action | Malformed]]] = {
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


class Turns:
    """Counts the turns of one episode."""

    def __init__(self, family: str, *, horizon: int, malformed_limit: int) -> None:
        self._family = family
        self._horizon = horizon
        self._malformed_limit = malformed_limit
        self.taken = 0
        self.malformed = 0

    def take(self, reason: str = "") -> None:
        """Count a turn; a malformed one with its reason."""
        self.taken += 1
        if reason:
            self.malformed += 1
            MALFORMED.labels(self._family, reason).inc()

    @property
    def over(self) -> str:
        """Why no further turn is played, as a sentence for the agent; empty while the episode goes on."""
        if self._malformed_limit and self.malformed >= self._malformed_limit:
            return f"Failed: {self.malformed} malformed actions."
        if self.taken >= self._horizon:
            return f"Failed: all {self._horizon} steps are used up."
        return ""


COMMAND_GUIDE: Final = (
    "You use a computer with a terminal. Each turn give one command: run LINE (types a line into the terminal and enters "
    "it), click X Y (0 to 999), press KEY, scroll PIXELS, wait, done, fail. Answer with the command only."
)
_VERIFY_PAUSE_S: Final = 0.1


class Computer(Protocol):
    """A running computer. Any call may raise `EnvError`: it broke, which says nothing about the agent."""

    def act(self, action: Action) -> None:
        """Perform an action by pixel or key, never `terminate` or one on an element."""

    def screenshot(self) -> bytes:
        """The screen as a PNG file."""

    def listing(self) -> str:
        """What there is, as text, for agents that do not see."""

    def overrun(self) -> str:
        """Why the episode cannot go on, as a sentence for the agent; empty while it can."""

    def get(self, spec: Mapping[str, JsonValue]) -> JsonValue:
        """What an evaluator asks for."""

    def settle(self) -> None:
        """Whatever the task wants done between the agent's last word and the verifier."""

    def stop(self) -> None:
        """Free everything. Idempotent, from any thread."""


class ReadOptions(Strict):
    """How responses are read; the READMEs of the families explain each option."""

    actions: Format = "computer_use"
    malformed_limit: int = Field(default=3, ge=0, le=1000)
    guide: bool = True


class ScreenOptions(ReadOptions):
    """What all families with a computer let a run choose."""

    verify_s: float = Field(default=2.0, ge=0.0, le=60.0)


class ScreenEpisode(ABC):
    """Responses read as actions, turns counted, results written; what is left to say is what an action does."""

    def __init__(self, family: str, horizon: int, options: ReadOptions, guide: str) -> None:
        self.done = False
        self._read = READERS[options.actions]
        guide = guide if options.actions == "command" else COMPUTER_USE_GUIDE
        self._guide = guide if options.guide else ""
        self._turns = Turns(family, horizon=horizon, malformed_limit=options.malformed_limit)

    def play(self, response: str) -> StepResult:
        action = self._read(response)
        if isinstance(action, Malformed):
            self._turns.take(action.reason)
            return self._after(f"malformed: {action.sentence}", "", valid=False)
        return self._act(action)

    @abstractmethod
    def _act(self, action: Action) -> StepResult:
        """Count the turn and perform the action."""

    @abstractmethod
    def _observe(self, remark: str) -> Observation:
        """What the agent sees now."""

    def _end(self, action: str, *, success: bool, said: str) -> StepResult:
        self.done = True
        return self._result(said, action, success=success, label=1 if success else -1)

    def _after(self, remark: str, action: str, *, valid: bool) -> StepResult:
        """The result of an action that decides nothing, unless it was the last turn."""
        said = self._turns.over
        self.done = bool(said)
        return self._result(said or remark, action, valid=valid, label=None if valid else -1)

    def _result(
        self,
        said: str,
        action: str,
        *,
        label: Literal[-1, 1] | None,
        valid: bool = True,
        success: bool = False,
    ) -> StepResult:
        return StepResult(
            observation=self._observe(said),
            action=action,
            action_valid=valid,
            done=self.done,
            success=success,
            label=label,
        )


class ComputerEpisode(ScreenEpisode):
    """One task being played.

    `begin` starts the computer with the task laid out and may take its time; `sees` and `reads` say whether observations
    carry a screenshot and the computer's listing; `abandon` is called when the episode is left, also when its computer has
    not started yet.
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
        self._family = family
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

    def _act(self, action: Action) -> StepResult:
        if action.ref is not None:
            self._turns.take("no_element")
            return self._after("there are no numbered elements", str(action), valid=False)
        self._turns.take()
        if action.kind == "terminate":
            return self._judge(action)
        computer = self._running()
        computer.act(action)
        overrun = computer.overrun()
        if overrun:
            return self._end(str(action), success=False, said=overrun)
        return self._after("", str(action), valid=True)

    def leave(self, *, sound: bool) -> None:  # noqa: ARG002
        self.done = True
        with self._lock:
            self._left = True
            computer, self._computer = self._computer, None
        if computer is not None:
            computer.stop()
        self._abandon()

    def _running(self) -> Computer:
        computer = self._computer
        if computer is None:
            raise EnvError(f"{self._family}: the episode is closed")
        return computer

    def _judge(self, action: Action) -> StepResult:
        """The agent says that it has finished, or that the task cannot be done. The verifier says whether that is so.

        It is asked only now: an episode that runs out of steps is a failure, whatever lies in its files, and so is one
        whose agent gives up on a task that can be done.
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
                time.sleep(_VERIFY_PAUSE_S)  # what was entered last may still be at work
        return self._end(str(action), success=success, said="Done." if success else "Failed.")

    def _observe(self, remark: str) -> Observation:
        computer = self._running()
        listed = computer.listing() if self._reads else ""
        return Observation(
            text="\n".join(part for part in (remark, listed) if part) or "The screen now.",
            images=(computer.screenshot(),) if self._sees else (),
        )
