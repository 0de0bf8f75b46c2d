"""One episode in ALFWorld's engine as plain synchronous code: reads a response, gives the command, tells what is seen."""

from __future__ import annotations

from environments.alfworld.engine import Game
from environments.alfworld.options import PlayOptions
from environments.household.episode import GUIDE, asked, read_action
from environments.household.wording import Alfworld
from triforge.rollout.protocols import Observation, Reset, StepResult


class AlfworldEpisode:
    """A game being played.

    Args:
        game: in the engine; ended when the episode is.
        horizon: steps until the episode ends as a failure.
        options: how responses are read.
    """

    def __init__(self, game: Game, horizon: int, options: PlayOptions) -> None:
        self.done = False
        self._game = game
        self._left = horizon
        self._options = options
        self._commands = game.first.commands

    def start(self) -> Reset:
        """The system message (empty without a guide) and what the engine says first."""
        system = ""
        if self._options.guide:
            answer = asked(self._options.actions, self._options.answer)
            system = GUIDE["alfworld"].format(answer=answer)
        return Reset(observation=self._observation(self._game.first.text), system=system)

    def play(self, response: str) -> StepResult:
        """Give the command that a response means; the engine itself says that nothing happens."""
        options = self._options
        action = read_action(response, options.actions, options.answer, self._commands)
        valid = action in self._commands
        # the engine is not shown what it cannot know: lone surrogates and kilobytes of noise mean no command
        seen = self._game.step(action if valid else "")
        self._commands = seen.commands
        self._left -= 1
        self.done = seen.won or self._left <= 0
        if self.done:
            self._game.end()
        return StepResult(
            observation=Observation(text=seen.text) if self.done else self._observation(seen.text),
            action=action,
            action_valid=valid,
            done=self.done,
            success=seen.won,
        )

    def close(self) -> None:
        """Give the engine back."""
        self.done = True
        self._game.end()

    def _observation(self, text: str) -> Observation:
        if self._options.actions == "numbered":
            text += Alfworld().numbered(self._commands)
        return Observation(text=text, admissible=self._commands)
