"""ALFWorld's own engine as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from pydantic import Field

from environments.alfworld import goals
from environments.alfworld.engine import Game, engine
from environments.alfworld.files import SPLIT, list_games, read_game, room_of
from environments.alfworld.goals import GameParams
from environments.household.catalogue import GOAL_TYPES, GoalType
from environments.household.params import AnswerOptions
from triforge.environments.kit import Family, Strict, parse_model, proofs, wrapped
from triforge.environments.registry import About
from triforge.environments.worker import TooSlowError
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, RewriteMenu, StepResult, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    folder: str = SPLIT
    goals: list[GoalType] = Field(default_factory=lambda: list(GOAL_TYPES), min_length=1)
    horizon: int = Field(default=50, ge=1, le=1000)


class AlfworldEpisode:
    """A game being played."""

    def __init__(self, game: Game, horizon: int, options: AnswerOptions) -> None:
        self.done = False
        self._game = game
        self._left = horizon
        self._options = options
        self._commands = game.first.commands

    def start(self) -> Reset:
        first = Observation(text=self._game.first.text, admissible=self._commands)
        return Reset(observation=first, system=self._options.explained())

    def play(self, response: str) -> StepResult:
        action = self._options.action(response, exact=True)
        valid = action in self._commands
        # lone surrogates and kilobytes of noise are kept from the engine
        seen = self._game.step(action if valid else "")
        self._commands = seen.commands
        self._left -= 1
        self.done = seen.won or self._left <= 0
        if self.done:
            self._game.end()
        return StepResult(
            observation=Observation(text=seen.text, admissible=() if self.done else seen.commands),
            action=action,
            action_valid=valid,
            done=self.done,
            success=seen.won,
        )

    def leave(self, *, sound: bool) -> None:  # noqa: ARG002
        self.done = True
        self._game.end()


class AlfworldFamily(Family[GameParams, AnswerOptions]):
    """The family `alfworld`; README.md explains it."""

    name = "alfworld"
    about = About(
        what="ALFWorld's own text engine, for its game files",
        tasks="a user's game files (official: 3,553 for training)",
        licence="MIT (alfworld, textworld), GPL-3.0 (fast-downward-textworld), in a process of their own",
        extra="alfworld",
        needs=("alfworld",),
        elsewhere="ALFWORLD_PYTHON",
        papers="RLAnything, EnvRL",
        steps_per_s=74,
    )
    params, play_options = GameParams, AnswerOptions
    blocks = True

    def read(self, params: Params) -> GameParams:
        """Read a task; add the bytes of its file, and drop a goal that is the file's own."""
        given = super().read(params)
        file = read_game(given.file)
        if given.sha256 not in (None, file.sha256):
            raise InputError(
                f"alfworld params: field sha256: {file.path} is not the file that the task was made from; upload "
                "the task anew without sha256, or put the file back"
            )
        goal = goals.kept(room_of(file), given.goal)
        return given.model_copy(update={"sha256": file.sha256, "goal": goal})

    def write(self, given: GameParams) -> Params:
        return given.model_dump(mode="json", exclude_none=True)

    def instruction(self, given: GameParams) -> str:
        if given.goal is not None:
            return goals.announce(given.goal.wanted)
        return read_game(given.file).task

    def kind(self, given: GameParams) -> str:
        return given.goal.type if given.goal is not None else read_game(given.file).sort

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "alfworld options")
        names = list_games(wanted.folder, wanted.goals)
        if count > len(names):
            raise InputError(
                f"alfworld generate: count was {count}, but folder {wanted.folder!r} has {len(names)} games of these types"
            )
        Random(f"alfworld files {seed}").shuffle(names)  # noqa: S311
        return [{"file": name, "horizon": wanted.horizon} for name in names[:count]]

    def begin(
        self, given: GameParams, options: AnswerOptions, _announced: str, _seed: int
    ) -> AlfworldEpisode:
        return AlfworldEpisode(_start(given), given.horizon, options)

    def solution(self, given: GameParams, options: AnswerOptions) -> Sequence[str] | None:
        """Return the responses of the engine's own planner; None when it finds nothing in time."""
        game = _start(given)
        try:
            return [wrapped(command, options.answer) for command in game.plan()] or None
        except TooSlowError:
            return None
        finally:
            game.end()

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        return goals.menu(self.read(task.params), task.instruction, direction)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        goal = goals.applied(self.read(task.params), answer)
        return self.validate({**task.params, "goal": goal})

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        try:
            own = self.validate(candidate.params)
        except InputError as error:
            return proofs(("well_formed", False, error.detail))
        return goals.check(self.read(parent.params), own, candidate, _start)

    def drift(self, root: Params, candidate: Params) -> float:
        return goals.drift(self.read(root), self.read(candidate))


def _start(given: GameParams) -> Game:
    file = str(read_game(given.file).path)
    if given.goal is None:
        return engine().start(file=file)
    goal = given.goal.wanted
    return engine().start(file=file, goal=goals.formula(goal), task=goals.announce(goal))


FAMILY: Final = AlfworldFamily()
