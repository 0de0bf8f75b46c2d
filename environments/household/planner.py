"""Solvers of games: a planner that knows where everything is, and an expert that knows only what was seen.

`plan` is A* over the engine's own states; moves that cannot shorten any plan are left out (objects do not block one another,
and a receptacle never fills up). `Expert.options` lists the sensible next commands; they label steps.
"""

from __future__ import annotations

import heapq
from itertools import count

from environments.household.catalogue import DEVICE, LAMP
from environments.household.wording import hinted
from environments.household.world import NOTHING, NOWHERE, TREATMENTS, Command, Goal, State, World
from triforge.environments.kit import path_back

MAX_EXPANSIONS = 20_000


def plan(
    world: World, goal: Goal | None = None, state: State | None = None
) -> list[Command] | None:
    """Return a shortest list of commands that makes `goal` true (empty if it holds already), or None when there is none."""
    goal = goal or world.goal
    start = state or world.start()
    if not _possible(world, goal):
        return None
    places = _useful_places(world, goal, start)
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
            return path_back(came, here)
        for command in _moves(world, goal, here, places):
            after = world.apply(here, command)
            if after is None or cost.get(after, steps + 2) <= steps + 1:
                continue
            cost[after] = steps + 1
            came[after] = (here, command)
            rank = steps + 1 + _bound(world, goal, after)
            heapq.heappush(frontier, (rank, next(tie), steps + 1, after))
    return None


def _possible(world: World, goal: Goal) -> bool:
    copies = sum(thing.kind == goal.object for thing in world.objects)
    if copies < goal.copies:
        return False
    if goal.type == "look":
        return any(thing.kind == goal.target for thing in world.objects)
    needed = {goal.target, DEVICE.get(goal.type, goal.target)}
    return needed <= {thing.kind for thing in world.receptacles}


def _useful_places(world: World, goal: Goal, start: State) -> list[int]:
    """Return the receptacles that can play a part: sources, devices, targets and places of lamps."""
    played = {goal.target, DEVICE.get(goal.type)}
    out = {i for i, thing in enumerate(world.receptacles) if thing.kind in played}
    sought = {goal.object, goal.target} if goal.type == "look" else {goal.object}
    out |= {
        at for at, thing in zip(start.where, world.objects, strict=True) if thing.kind in sought
    }
    return sorted(out - {NOWHERE})


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
        seen: set[tuple[int, int, int]] = set()
        for obj in world.here(state):
            treated = state.clean >> obj & 1, state.hot >> obj & 1, state.cold >> obj & 1
            if world.objects[obj].kind == goal.object and treated not in seen:
                seen.add(treated)
                out.append(Command("take", obj, at))
    if goal.type == "look":
        lamps = [o for o in world.lamps_here(state) if world.objects[o].kind == goal.target]
        out.extend(Command("use", o) for o in lamps)
    elif goal.type in DEVICE and held != NOTHING:
        out.append(Command(TREATMENTS[goal.type], held, at))
    return out


def _bound(world: World, goal: Goal, state: State) -> int:
    """Return a lower bound of the commands still needed: each manipulation, and each place to be reached."""
    held = state.held
    holds = held != NOTHING and world.objects[held].kind == goal.object
    if goal.until:
        return int(not world.won(state, goal))
    if goal.type == "look":
        return (not holds) + (not state.lit)
    if world.won(state, goal):
        return 0
    at_target = state.at != NOWHERE and world.receptacles[state.at].kind == goal.target
    if goal.type == "two":
        return _bound_two(world, goal, state, holds, at_target)
    objects = range(len(world.objects))
    treated = goal.type not in DEVICE or any(world.meets(state, obj, goal) for obj in objects)
    if not holds:
        return 3 if goal.type == "place" or not treated else 2
    if world.meets(state, held, goal):
        return 1 if at_target else 2
    at_device = world.receptacles[state.at].kind == DEVICE[goal.type] == goal.target
    return 2 if treated or at_device else 3


def _bound_two(world: World, goal: Goal, state: State, holds: bool, at_target: bool) -> int:
    pairs = zip(world.objects, state.where, strict=True)
    places = [at for thing, at in pairs if thing.kind == goal.object and at != NOWHERE]
    targets = [at for at in places if world.receptacles[at].kind == goal.target]
    missing = 2 - max(map(targets.count, targets), default=0)
    # a missing object still costs a put; unless it is in hand also a go and a take, and a go back to the target
    return missing + (missing - holds) + (0 if holds and at_target else 1)


class Expert:
    """An agent that knows only what it has seen: call `see` once for every state after the start, then ask for commands.

    Only the agent moves things, so an object seen once stays known. A demonstrator may pursue another `goal` than the task's (it
    forgets to clean, for example).
    """

    def __init__(self, world: World, goal: Goal | None = None) -> None:
        self._world = world
        self._goal = goal or world.goal
        self._seen: set[int] = set()
        self._hinted = hinted(world)
        for state in world.before:
            self.see(state)

    def see(self, state: State) -> None:
        if state.at != NOWHERE and self._world.is_open(state, state.at):
            self._seen.add(state.at)

    def options(self, state: State) -> list[Command]:
        """Return the sensible commands: search any receptacle not looked into, else the next right manipulation."""
        world, held, goal = self._world, state.held, self._goal
        if held == NOTHING:
            return self._fetch(state)
        if world.objects[held].kind != goal.object:
            homes = [rec for rec in range(len(world.receptacles)) if world.fits(held, rec)]
            return self._at(state, homes, [Command("put", held, state.at)])
        if goal.type == "look":
            return self._to_lamp(state)
        if not world.meets(state, held, goal):
            devices = self._world.of_kind(DEVICE[goal.type])
            if state.at in devices:
                return [Command(TREATMENTS[goal.type], held, state.at)]
            return [Command("go", rec=rec) for rec in devices]
        placed = self._placed(state)
        targets = self._world.of_kind(goal.target) if placed is None else [state.where[placed]]
        return self._at(state, targets, [Command("put", held, state.at)])

    def act(self, state: State) -> Command | None:
        """Return the command of the expert, or None when nothing is left to try."""
        options = self.options(state)
        return min(options, key=lambda command: self._rank(state, command)) if options else None

    def _knows(self, state: State, obj: int) -> bool:
        place = state.where[obj]
        if place == NOWHERE or place in self._seen:
            return True
        return place == self._hinted and self._world.objects[obj].kind == self._world.goal.object

    def _at(self, state: State, places: list[int], do: list[Command]) -> list[Command]:
        """Return the next of: go to one of the places, open it, do the rest."""
        if state.at not in places:
            return [Command("go", rec=rec) for rec in places]
        return do if self._world.is_open(state, state.at) else [Command("open", rec=state.at)]

    def _search(self, state: State) -> list[Command]:
        if state.at != NOWHERE and state.at not in self._seen:
            return [Command("open", rec=state.at)]
        places = range(len(self._world.receptacles))
        return [Command("go", rec=rec) for rec in places if rec not in self._seen]

    def _fetch(self, state: State) -> list[Command]:
        goal, placed = self._goal, self._placed(state)
        wanted = [
            obj
            for obj, thing in enumerate(self._world.objects)
            if thing.kind == goal.object and obj != placed and self._knows(state, obj)
        ]
        wanted = [obj for obj in wanted if self._world.meets(state, obj, goal)] or wanted
        if not wanted:
            return self._search(state)
        here = [Command("take", obj, state.at) for obj in wanted if state.where[obj] == state.at]
        return self._at(state, sorted({state.where[obj] for obj in wanted}), here)

    def _to_lamp(self, state: State) -> list[Command]:
        objects = enumerate(self._world.objects)
        kind = self._goal.target
        lamps = [o for o, thing in objects if thing.kind == kind and self._knows(state, o)]
        if not lamps:
            return self._search(state)
        here = [Command("use", obj) for obj in lamps if state.where[obj] == state.at]
        return self._at(state, sorted({state.where[obj] for obj in lamps}), here)

    def _placed(self, state: State) -> int | None:
        """Return, for a goal `two`, the object that already lies where it should stay."""
        if self._goal.type != "two":
            return None
        targets = self._world.of_kind(self._goal.target)
        for obj, place in enumerate(state.where):
            known = place in targets and self._knows(state, obj)
            if known and self._world.objects[obj].kind == self._goal.object:
                return obj
        return None

    def _rank(self, state: State, command: Command) -> tuple[int, int]:
        """Rank the likeliest homes first, then by the order of the room."""
        if command.verb != "go":
            return 0, command.obj
        kind = self._world.receptacles[command.rec].kind
        sought = self._goal.object if state.held == NOTHING else LAMP
        homes = self._world.catalogue.homes[sought]
        return (homes.index(kind) if kind in homes else len(homes)), command.rec
