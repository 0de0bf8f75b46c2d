"""The planner: proves that a game is solvable and finds a shortest plan, knowing where everything is.

A* over the engine's own states and rules. Moves that cannot shorten any plan are left out: going to a place that plays
no part in the goal, taking an object of another kind, closing, looking. From the start of a game this keeps a shortest
plan (objects do not block one another, and a receptacle never fills up).
"""

from __future__ import annotations

import heapq
from itertools import count

from environments.household.kinds import DEVICE
from environments.household.world import NOTHING, NOWHERE, TREATMENTS, Command, Goal, State, World

MAX_EXPANSIONS = 20_000


def plan(
    world: World, goal: Goal | None = None, state: State | None = None
) -> list[Command] | None:
    """A shortest list of commands that makes `goal` true.

    Args:
        world: the game.
        goal: the world's own goal by default.
        state: where to start; the state at reset by default.

    Returns:
        The plan (empty if the goal already holds), or None when there is none.
    """
    goal = goal or world.goal
    start = state or world.start()
    if not _possible(world, goal):
        return None
    places = _places(world, goal, start)
    tie = count()
    frontier = [(_bound(world, goal, start), next(tie), 0, start)]
    came: dict[State, tuple[State, Command] | None] = {start: None}
    cost = {start: 0}
    for _ in range(MAX_EXPANSIONS):
        if not frontier:
            return None
        _, _, steps, here = heapq.heappop(frontier)
        if steps > cost[here]:
            continue
        if world.won(here, goal):
            return _path(came, here)
        for command in _moves(world, goal, here, places):
            after = world.apply(here, command)
            if after is None or cost.get(after, steps + 2) <= steps + 1:
                continue
            cost[after] = steps + 1
            came[after] = (here, command)
            rank = steps + 1 + _bound(world, goal, after)
            heapq.heappush(frontier, (rank, next(tie), steps + 1, after))
    return None


def _path(came: dict[State, tuple[State, Command] | None], end: State) -> list[Command]:
    out: list[Command] = []
    link = came[end]
    while link is not None:
        out.append(link[1])
        link = came[link[0]]
    return out[::-1]


def _possible(world: World, goal: Goal) -> bool:
    kinds = {thing.kind for thing in world.receptacles}
    copies = sum(thing.kind == goal.object for thing in world.objects)
    if copies < (2 if goal.type == "two" else 1):
        return False
    if goal.type == "look":
        return world.lamps != 0
    device = DEVICE.get(goal.type)
    return goal.target in kinds and (device is None or device in kinds)


def _places(world: World, goal: Goal, start: State) -> list[int]:
    """The receptacles that can play a part: sources, devices, targets, lamps; one open place to drop a wrong object."""
    device = DEVICE.get(goal.type)
    out = {i for i, thing in enumerate(world.receptacles) if thing.kind in (goal.target, device)}
    for obj, place in enumerate(start.where):
        wanted = world.objects[obj].kind == goal.object
        lamp = goal.type == "look" and world.lamps >> obj & 1
        if place != NOWHERE and (wanted or lamp):
            out.add(place)
    return sorted(out)


def _moves(world: World, goal: Goal, state: State, places: list[int]) -> list[Command]:
    at, held = state.at, state.held
    out = [Command("go", rec=rec) for rec in places if rec != at]
    if at == NOWHERE:
        return out
    if not world.is_open(state, at):
        out.append(Command("open", rec=at))
    elif held != NOTHING:
        wrong = world.objects[held].kind != goal.object
        if wrong or world.receptacles[at].kind == goal.target:
            out.append(Command("put", held, at))
    else:
        seen: set[tuple[bool, bool, bool]] = set()
        for obj in world.here(state):
            look = (
                bool(state.clean >> obj & 1),
                bool(state.hot >> obj & 1),
                bool(state.cold >> obj & 1),
            )
            if world.objects[obj].kind == goal.object and look not in seen:
                seen.add(look)
                out.append(Command("take", obj, at))
    if goal.type == "look":
        out.extend(Command("use", o) for o in world.here(state) if world.lamps >> o & 1)
    elif goal.type in DEVICE and held != NOTHING:
        out.append(Command(TREATMENTS[goal.type], held, at))
    return out


def _bound(world: World, goal: Goal, state: State) -> int:
    """A lower bound of the commands still needed: each manipulation, and each place one must still reach."""
    held = state.held
    holds = held != NOTHING and world.objects[held].kind == goal.object
    if goal.type == "look":
        return _bound_look(world, state, holds)
    if world.won(state, goal):
        return 0
    at_target = state.at != NOWHERE and world.receptacles[state.at].kind == goal.target
    if goal.type == "two":
        return _bound_two(world, goal, state, holds, at_target)
    treated = goal.type not in DEVICE or _any_treated(world, goal, state)
    if holds:
        if world.meets(state, held, goal):
            return 1 if at_target else 2
        return (
            2
            if treated or world.receptacles[state.at].kind == DEVICE[goal.type] == goal.target
            else 3
        )
    return 3 if goal.type == "place" or not treated else 2


def _any_treated(world: World, goal: Goal, state: State) -> bool:
    return any(world.meets(state, obj, goal) for obj in range(len(world.objects)))


def _bound_look(world: World, state: State, holds: bool) -> int:
    lit_here = any(state.lit >> i & 1 for i in world.here(state))
    return (0 if holds else 1) + (0 if lit_here or state.lit else 1)


def _bound_two(world: World, goal: Goal, state: State, holds: bool, at_target: bool) -> int:
    placed: dict[int, int] = {}
    for obj, place in enumerate(state.where):
        if place == NOWHERE or world.objects[obj].kind != goal.object:
            continue
        if world.receptacles[place].kind == goal.target:
            placed[place] = placed.get(place, 0) + 1
    missing = 2 - max(placed.values(), default=0)
    # a missing object still costs a put; unless it is in hand also a go and a take, and a go back to the target
    return missing + (missing - holds) + (0 if holds and at_target else 1)
