"""Games that the real engine lets win: drawn by the household, loaded, played by their plan, kept only when that wins."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from environments.alfworld.engine import Engine
from environments.alfworld.options import Knobs
from environments.alfworld.problem import problem
from environments.household.generator import drawn_by, solvable_game
from environments.household.planner import plan
from environments.household.wording import Exact, alfworld_sentence
from environments.household.world import World
from triforge.errors import InputError
from triforge.types import Params

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What became of the games that were drawn: how many were kept, and why the others were not."""

    kept: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """As in "58 kept, 2 rejected (2: the engine cannot load the game ...)"."""
        reasons = "; ".join(f"{number}: {why}" for why, number in self.rejected.most_common())
        return f"{self.kept} kept, {self.rejected.total()} rejected{f' ({reasons})' if reasons else ''}"


def proved_games(
    engine: Engine, *, count: int, seed: int, knobs: Knobs, tally: Tally
) -> Iterator[World]:
    """Draw `count` games that the engine lets win. Game i depends on the seed, i and the knobs only.

    Args:
        engine: the real one.
        count: how many.
        seed: of the games.
        knobs: what games.
        tally: is kept up to date; what was rejected is logged as well.
    """
    options = house_options(knobs)
    draw, house = drawn_by(options)
    for index in range(count):
        for attempt in range(knobs.tries):
            world = solvable_game(Random(f"alfworld {seed} {index} {attempt}"), house, draw)  # noqa: S311
            why = why_not(engine, world)
            if why is None:
                break
            tally.rejected[why] += 1
            _log.warning("alfworld: game %d of seed %d was rejected: %s", index, seed, why)
        else:
            raise InputError(
                f"alfworld options: field tries: the engine rejected {knobs.tries} games in a row ({tally}); raise it or "
                "change the other knobs"
            )
        tally.kept += 1
        yield world


def house_options(knobs: Knobs) -> Params:
    """The knobs of the household's generator."""
    own = {"source", "folder", "tries"}
    options: Params = knobs.model_dump(mode="json", exclude=own)
    return options


def why_not(engine: Engine, world: World) -> str | None:
    """Why the engine does not let a game win by its plan, or None when it does."""
    steps = plan(world)
    if not steps:
        return "it has no plan"
    wording = Exact()
    try:
        game = engine.start(problem=problem(world), task=alfworld_sentence(world))
    except InputError as error:
        return error.detail
    try:
        if game.first.won:
            return "it is won at reset"
        for number, step in enumerate(steps, start=1):
            seen = game.step(wording.command(world, step))
            if seen.won != (number == len(steps)):
                return f"won is {seen.won} after {number} of {len(steps)} planned commands"
    finally:
        game.end()
    return None
