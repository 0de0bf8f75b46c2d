"""ALFWorld's own engine as an environment family."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random
from typing import Final

from pydantic import JsonValue

from environments.alfworld import goals
from environments.alfworld.engine import Game, engine
from environments.alfworld.files import chosen, list_games, read_game, room_of
from environments.alfworld.games import (
    GameParams,
    GeneratorOptions,
    PlayOptions,
    Tally,
    formula,
    problem,
    proved_games,
    why_not,
)
from environments.household import rewriting
from environments.household.catalogue import GOAL_TYPES
from environments.household.family import FAMILY as HOUSEHOLD
from environments.household.params import PlayOptions as HouseholdOptions
from environments.household.params import params_of, world_of
from environments.household.wording import Alfworld, announce
from triforge.environments.kit import Family, parse_model
from triforge.environments.registry import About
from triforge.environments.worker import TooSlowError
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, RewriteMenu, StepResult, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task


class AlfworldEpisode:
    """A game being played."""

    def __init__(self, game: Game, horizon: int, options: PlayOptions) -> None:
        self.done = False
        self._game = game
        self._left = horizon
        self._options = options
        self._commands = game.first.commands

    def start(self) -> Reset:
        first = self._observation(self._game.first.text)
        return Reset(observation=first, system=self._options.explained())

    def play(self, response: str) -> StepResult:
        action = self._options.action(response, self._commands, exact=True)
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

    def leave(self, *, sound: bool) -> None:  # noqa: ARG002
        self.done = True
        self._game.end()

    def _observation(self, text: str) -> Observation:
        if self._options.actions == "numbered":
            text += Alfworld().numbered(self._commands)
        return Observation(text=text, admissible=self._commands)


_HORIZON: Final = 50
_log = logging.getLogger(__name__)


class AlfworldFamily(Family[Params, PlayOptions]):
    """The family `alfworld`; see README.md beside this file for the options."""

    name = "alfworld"
    about = About(
        what="ALFWorld's own text engine, for the official game files and for generated games of the same kind",
        tasks="a user's game files (official: 3,553 for training), or generated",
        licence="MIT (alfworld, textworld), GPL-3.0 (fast-downward-textworld), in a process of their own",
        extra="alfworld",
        needs=("alfworld",),
        elsewhere="ALFWORLD_PYTHON",
        papers="RLAnything, EnvRL",
        steps_per_s=74,
    )

    play_options = PlayOptions
    blocks = True

    def read(self, params: Params) -> Params:
        """The parameters in full, of a game or of a game file."""
        given = parse_model(GameParams, params, "alfworld params")
        if given.file is not None and given.game is None:
            found = read_game(given.file)
            if given.sha256 not in (None, found.sha256):
                raise InputError(
                    f"alfworld params: field sha256: {found.path} is not the file that the task was made from; upload "
                    "the task anew without sha256, or put the file back"
                )
            horizon = _HORIZON if given.horizon is None else given.horizon
            read: Params = {"file": given.file, "sha256": found.sha256, "horizon": horizon}
            return {**read, **goals.kept(room_of(found), given.goal)}
        if given.game is None or any(
            value is not None for value in (given.file, given.sha256, given.horizon, given.goal)
        ):
            raise InputError(
                "alfworld params: expected either game (a household game under ALFWorld's rules) or file, with sha256, horizon "
                "and goal if you like"
            )
        if given.game.get("rules") != "alfworld":
            raise InputError(
                'alfworld params: field game: expected a game with "rules": "alfworld"'
            )
        return {"game": HOUSEHOLD.validate(dict(given.game)).params}

    def write(self, given: Params) -> Params:
        return given

    def instruction(self, given: Params) -> str:
        if "game" in given:
            return announce(world_of(_game_of(given)))
        if "goal" in given:
            return goals.announce(goals.goal_of(given))
        return read_game(str(given["file"])).task

    def kind(self, given: Params) -> str:
        if "game" in given:
            return world_of(_game_of(given)).goal.type
        if "goal" in given:
            return goals.goal_of(given).type
        return read_game(str(given["file"])).sort

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "alfworld options")
        if count < 0:
            raise InputError(f"alfworld generate: count was {count}, expected 0 or more")
        if wanted.source == "files":
            return _from_files(count, seed, wanted)
        tally = Tally()
        worlds = proved_games(engine(), count=count, seed=seed, wanted=wanted, tally=tally)
        made: list[Params] = [{"game": params_of(world)} for world in worlds]
        _log.info("alfworld: games generated: %s", tally)
        return made

    def begin(
        self, given: Params, options: PlayOptions, _announced: str, _seed: int
    ) -> AlfworldEpisode:
        return AlfworldEpisode(_start(given, memo=options.memo), _horizon(given), options)

    def solution(self, given: Params, options: PlayOptions) -> Sequence[str] | None:
        """The responses of a shortest plan of a generated game; of a file, those of the engine's own planner.

        None when that finds nothing, or nothing in time.
        """
        if "game" in given:
            reading = HouseholdOptions(**options.model_dump(exclude={"memo"}))
            return HOUSEHOLD.solution(world_of(_game_of(given)), reading)
        game = _start(given, memo=options.memo)
        try:
            out, commands = [], game.first.commands
            for command in game.plan():
                out.append(options.response(command, commands))
                commands = game.step(command).commands
        except TooSlowError:
            return None
        finally:
            game.end()
        return out or None

    def rewrite_menu(self, task: Task, direction: Direction) -> RewriteMenu:
        if "game" in task.params:
            return rewriting.menu(_house_task(task), direction)
        return goals.menu(task, direction)

    def apply_rewrite(self, task: Task, answer: dict[str, str]) -> TaskDraft:
        if "game" in task.params:
            return _draft(rewriting.apply(_house_task(task), answer))
        return self.validate(goals.applied(task, answer))

    def check_rewrite(self, parent: Task, candidate: TaskDraft) -> list[CheckResult]:
        """The household's proofs, and that the real engine lets the candidate win."""
        if "game" not in parent.params:
            return goals.check(
                self.validate, lambda given: _start(given, memo=True), parent, candidate
            )
        if "game" not in candidate.params:
            return [CheckResult(name="same_room", passed=False, detail="a game became a file")]
        inner = TaskDraft(
            params=_game_of(candidate.params),
            instruction=candidate.instruction,
            kind=candidate.kind,
        )
        results = rewriting.check(_house_task(parent), inner)
        if not all(result.passed for result in results):
            return results
        why = why_not(engine(), world_of(inner.params))
        return [*results, CheckResult(name="engine_agrees", passed=why is None, detail=why or "")]

    def drift(self, root: Params, candidate: Params) -> float:
        """The share of goal, object and target that differ; 1 between a file and another one, or a game."""
        if "game" in root and "game" in candidate:
            return HOUSEHOLD.drift(_game_of(root), _game_of(candidate))
        return goals.drift(root, candidate)

    def at_level(self, level: int, options: Params) -> Params:
        """Games whose shortest plan has `level + 4` commands; level 0 has the shorter ones, too."""
        if options.get("source") == "files":
            raise InputError(
                "alfworld options: field source: game files have no levels; use 'generated'"
            )
        return HOUSEHOLD.at_level(level, options)


def _from_files(count: int, seed: int, wanted: GeneratorOptions) -> list[Params]:
    names = list_games(wanted.folder)
    if set(wanted.goals) != set(GOAL_TYPES):
        names = chosen(names, wanted.goals)
    if count > len(names):
        raise InputError(
            f"alfworld generate: count was {count}, but folder {wanted.folder!r} has {len(names)} games of these types"
        )
    Random(f"alfworld files {seed}").shuffle(names)  # noqa: S311
    return [{"file": name, "horizon": wanted.horizon} for name in names[:count]]


def _start(given: Params, *, memo: bool) -> Game:
    if "game" in given:
        world = world_of(_game_of(given))
        return engine(memo=memo).start(problem=problem(world), task=announce(world))
    file = str(read_game(str(given["file"])).path)
    if "goal" not in given:
        return engine(memo=memo).start(file=file)
    goal = goals.goal_of(given)
    return engine(memo=memo).start(file=file, goal=formula(goal), task=goals.announce(goal))


def _horizon(params: Params) -> int:
    held: JsonValue = _game_of(params)["horizon"] if "game" in params else params["horizon"]
    assert isinstance(held, int)
    return held


def _game_of(params: Params) -> Params:
    game = params["game"]
    assert isinstance(game, dict)
    return game


def _house_task(task: Task) -> Task:
    return task.model_copy(update={"family": HOUSEHOLD.name, "params": _game_of(task.params)})


def _draft(inner: TaskDraft) -> TaskDraft:
    return TaskDraft(params={"game": inner.params}, instruction=inner.instruction, kind=inner.kind)


FAMILY: Final = AlfworldFamily()
