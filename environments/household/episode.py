"""One episode of a game."""

from __future__ import annotations

from math import inf
from typing import Final, Literal

from environments.household.params import PlayOptions
from environments.household.planner import Expert, plan
from environments.household.wording import Alfworld, Exact, Terse, Wording
from environments.household.world import Command, World
from triforge.environments.kit import wrapped
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, StepResult

WORDINGS: Final[dict[str, Wording]] = {"alfworld": Alfworld(), "terse": Terse()}
_EXACT: Final = Exact()


def wording_of(world: World, options: PlayOptions) -> Wording:
    """Return the wording of a game: that of the options, except that ALFWorld's rules have ALFWorld's words."""
    if not world.catalogue.strict:
        return WORDINGS[options.wording]
    if options.wording != "alfworld":
        raise InputError(
            f"household options: field wording: given {options.wording!r}, expected 'alfworld' for games under ALFWorld's rules; "
            'change it, or generate games with rules = "simple"'
        )
    return _EXACT


class Episode:
    """A game being played. `start` once, then `play` until `done`."""

    def __init__(self, world: World, options: PlayOptions, instruction: str) -> None:
        self.world = world
        self.options = options
        self.instruction = instruction
        self.state = world.start()
        self.steps = 0
        self.done = False
        self.success = False
        self._wording = wording_of(world, options)
        self._expert = Expert(world)
        self._offered = self._wording.offered(world, self.state)
        self._nearest = self._commands_left() if options.labels == "progress" else 0

    def start(self) -> Reset:
        world, text = self.world, self._wording.first(self.world, self.instruction)
        for command, after in zip(world.played, world.before[1:], strict=True):
            shown = self._wording.after(world, command, after)
            text += self._wording.turn.format(self.say(command), shown)
        system = self.options.explained() if self.options.wording == "alfworld" else ""
        return Reset(observation=self._observation(text), system=system)

    def play(self, response: str) -> StepResult:
        action = self.options.action(response, exact=self.world.catalogue.strict)
        command = self._offered.get(action)
        label = self.label(action) if self.options.labels == "sensible" else -1
        self.steps += 1
        if command is None:
            text = self._wording.nothing
        else:
            after = self.world.apply(self.state, command)
            assert after is not None, f"{action!r} was offered but does nothing"
            self.state = after
            self._expert.see(after)
            self._offered = self._wording.offered(self.world, after)
            self.success = self.world.won(after)
            text = self._wording.after(self.world, command, after)
            if self.success:
                text = self._wording.won(text)
            if self.options.labels == "progress":
                left = self._commands_left()
                label = 1 if left < self._nearest else -1
                self._nearest = min(self._nearest, left)
        self.done = self.success or self.steps >= self.world.horizon
        return StepResult(
            observation=Observation(text=text) if self.done else self._observation(text),
            action=action,
            action_valid=command is not None,
            done=self.done,
            success=self.success,
            label=label,
        )

    def label(self, action: str) -> Literal[-1, 1]:
        """Return +1 when the command `action` makes sense for what has been seen so far, else -1."""
        if action not in self._offered:
            return -1
        return 1 if action in self.sensible() else -1

    def _commands_left(self) -> float:
        """Return the length of the shortest plan from here, which knows where everything is."""
        steps = plan(self.world, state=self.state)
        return inf if steps is None else len(steps)

    def sensible(self) -> set[str]:
        """Return the texts of all commands that make sense for what has been seen so far."""
        options = self._expert.options(self.state)
        return {self._wording.command(self.world, command) for command in options}

    def commands(self) -> tuple[str, ...]:
        return tuple(self._offered)

    def say(self, command: Command) -> str:
        return self._wording.command(self.world, command)

    def response(self, action: str) -> str:
        """Return the response that plays the command `action`."""
        return wrapped(action, self.options.answer)

    def _observation(self, text: str) -> Observation:
        return Observation(text=text, admissible=self.commands())
