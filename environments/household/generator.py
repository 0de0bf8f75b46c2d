"""Seeded games: rooms drawn under the knobs, each proved solvable within its horizon and not won at reset."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from environments.household import furnishing
from environments.household.kinds import DEVICE, HOMES, LAMP, LAMP_HOMES, OPENABLE, SUITS
from environments.household.options import HouseKnobs, Knobs
from environments.household.params import parse_model
from environments.household.planner import plan
from environments.household.world import Goal, Thing, World
from triforge.errors import InputError
from triforge.types import Params

TRIES: Final = 200
TRIES_TO_FIT: Final = 2000  # where the length of the plan is asked for


def generate(*, count: int, seed: int, options: Params) -> list[World]:
    """Make `count` games. Game i depends on the seed, i and the options only, so a longer list starts the same."""
    if count < 0:
        raise InputError(f"household generate: count was {count}, expected 0 or more")
    draw, knobs = drawn_by(options)
    out = []
    for index in range(count):
        rng = Random(f"household {seed} {index}")  # noqa: S311
        out.append(solvable_game(rng, knobs, draw))
    return out


def drawn_by(options: Params) -> tuple[Callable[[Random], World | None], Knobs | HouseKnobs]:
    """What draws one room under these options, solvable or not, and the options themselves."""
    if options.get("rules") == "alfworld":
        house = parse_model(HouseKnobs, options, "options")
        return (lambda rng: furnishing.draw(rng, house)), house
    knobs = parse_model(Knobs, options, "options")
    return (lambda rng: _draw(rng, knobs)), knobs


def solvable_game(
    rng: Random, knobs: Knobs | HouseKnobs, draw: Callable[[Random], World | None]
) -> World:
    """Draw rooms until one is solvable within the horizon, by a plan as long as `knobs.commands` asks for."""
    shortest, longest = knobs.commands or (0, knobs.horizon)
    tries = TRIES if knobs.commands is None else TRIES_TO_FIT
    for _ in range(tries):
        world = draw(rng)
        if world is None or world.won(world.start()):
            continue
        steps = plan(world)
        if steps is not None and shortest <= len(steps) <= min(longest, knobs.horizon):
            return world
    raise InputError(
        f"household options: no solvable game found in {tries} draws; raise `receptacles` or `horizon`, or allow more "
        "`kinds`, `objects`, `goals` or `commands`"
    )


def _draw(rng: Random, knobs: Knobs) -> World | None:
    goal = _draw_goal(rng, knobs)
    if goal is None:
        return None
    kinds = _draw_kinds(rng, knobs, goal)
    if kinds is None:
        return None
    receptacles = _numbered(kinds)
    objects = _draw_objects(rng, knobs, goal, receptacles)
    if objects is None:
        return None
    opened = 0
    for i, thing in enumerate(receptacles):
        if thing.kind in OPENABLE and rng.random() >= knobs.closed:
            opened |= 1 << i
    objects.sort()
    names = _numbered([kind for kind, _ in objects])
    return World(
        receptacles=receptacles,
        objects=names,
        where=tuple(place for _, place in objects),
        opened=opened,
        goal=goal,
        horizon=knobs.horizon,
        hint=rng.random() < knobs.hint,
    )


def _draw_goal(rng: Random, knobs: Knobs) -> Goal | None:
    kind_of_goal = rng.choice(knobs.goals)
    fitting = [kind for kind in knobs.objects if kind in SUITS[kind_of_goal]]
    if not fitting:
        return None
    kind = rng.choice(fitting)
    if kind_of_goal == "look":
        return Goal("look", kind, LAMP)
    targets = [home for home in HOMES[kind] if home in knobs.kinds]
    return Goal(kind_of_goal, kind, rng.choice(targets)) if targets else None


def _draw_kinds(rng: Random, knobs: Knobs, goal: Goal) -> list[str] | None:
    """The kinds of the room's receptacles: those that the goal needs, then others up to the drawn number."""
    sources = [home for home in HOMES[goal.object] if home in knobs.kinds and home != goal.target]
    if not sources:
        return None
    needed = {rng.choice(sources)}
    if goal.type == "look":
        lamp_homes = [home for home in LAMP_HOMES if home in knobs.kinds]
        if not lamp_homes:
            return None
        needed.add(rng.choice(lamp_homes))
    else:
        needed.add(goal.target)
    if device := DEVICE.get(goal.type):
        if device not in knobs.kinds:
            return None
        needed.add(device)
    size = rng.randint(*knobs.receptacles)
    if size < len(needed):
        return None
    out = sorted(needed)
    while len(out) < size:
        free = [kind for kind in knobs.kinds if out.count(kind) < knobs.per_kind]
        if knobs.openable_share is not None:
            openable = rng.random() < knobs.openable_share
            free = [kind for kind in free if (kind in OPENABLE) == openable] or free
        if not free:
            break
        out.append(rng.choice(free))
    return out if len(out) >= knobs.receptacles[0] else None


def _draw_objects(
    rng: Random, knobs: Knobs, goal: Goal, receptacles: tuple[Thing, ...]
) -> list[tuple[str, int]] | None:
    """(kind, receptacle) of every object: the goal's, lamps, distractors."""

    def homes(kind: str, allowed: tuple[str, ...], but: str = "") -> list[int]:
        places = [i for i, thing in enumerate(receptacles) if thing.kind in allowed]
        return [i for i in places if receptacles[i].kind != but] if kind else places

    sources = homes(goal.object, HOMES[goal.object], goal.target)
    if not sources:
        return None
    out = [(goal.object, rng.choice(sources)) for _ in range(2 if goal.type == "two" else 1)]
    lamp_places = homes(LAMP, LAMP_HOMES)
    if lamp_places and (goal.type == "look" or rng.random() < knobs.lamps):
        out.append((LAMP, rng.choice(lamp_places)))
    others = [k for k in knobs.objects if k != goal.object and homes(k, HOMES[k])]
    distractors: list[str] = []
    for _ in range(rng.randint(*knobs.distractors) if others else 0):
        twice = bool(distractors) and rng.random() < knobs.duplicates
        kind = rng.choice(distractors if twice else others)
        if distractors.count(kind) < 2:
            distractors.append(kind)
            out.append((kind, rng.choice(homes(kind, HOMES[kind]))))
    return out


def _numbered(kinds: list[str]) -> tuple[Thing, ...]:
    counts: dict[str, int] = {}
    out = []
    for kind in sorted(kinds):
        counts[kind] = counts.get(kind, 0) + 1
        out.append(Thing(kind, counts[kind]))
    return tuple(out)
