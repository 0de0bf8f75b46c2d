"""The turns of one episode: how many are left, what was malformed, and why the episode is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from prometheus_client import Counter

from environments.gui.actions import Action, Malformed, call, read_command, read_computer_use

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
    """Counts the turns of one episode.

    Args:
        family: for the counter.
        horizon: turns after which the episode is over.
        malformed_limit: malformed turns after which it is over; 0 never ends it for them.
    """

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
