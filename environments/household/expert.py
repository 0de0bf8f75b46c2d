"""The scripted expert: plays well without knowing where things are, from nothing but what was seen.

`sensible` lists what an agent with this knowledge might well do next; it gives every step its label. `Expert` picks one
of these commands: receptacles are searched in the order of likeliness for the object, then as listed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from environments.household.instruction import hinted
from environments.household.kinds import DEVICE, LAMP
from environments.household.world import NOTHING, NOWHERE, TREATMENTS, Command, Goal, State, World


@dataclass(slots=True)
class Knowledge:
    """What the agent has seen: the receptacles it looked into, and with a hint where the object lies.

    Nobody else moves things, so what was seen once stays known.
    """

    world: World
    seen: set[int] = field(default_factory=set)
    told: int | None = None

    def __post_init__(self) -> None:
        self.told = hinted(self.world)

    def observe(self, state: State) -> None:
        """Take in what the present state shows."""
        if state.at != NOWHERE and self.world.is_open(state, state.at):
            self.seen.add(state.at)

    def knows(self, state: State, obj: int) -> bool:
        """Whether the agent knows where object `obj` is."""
        place = state.where[obj]
        if place == NOWHERE or place in self.seen:
            return True
        return place == self.told and self.world.objects[obj].kind == self.world.goal.object


def sensible(
    world: World, state: State, known: Knowledge, goal: Goal | None = None
) -> list[Command]:
    """The commands that make sense now, given what was seen. Empty when nothing is left to try.

    Any receptacle not looked into is a sensible place to search; otherwise only the next right manipulation counts.
    """
    goal = goal or world.goal
    held = state.held
    if held == NOTHING:
        return _fetch(world, state, known, goal)
    if world.objects[held].kind != goal.object:
        return _drop(world, state)
    if goal.type == "look":
        return _to_lamp(world, state, known)
    if not world.meets(state, held, goal):
        return _treat(world, state, goal)
    return _deliver(world, state, known, goal)


def _fetch(world: World, state: State, known: Knowledge, goal: Goal) -> list[Command]:
    settled = _settled(world, state, known, goal)
    wanted = [
        obj
        for obj, thing in enumerate(world.objects)
        if thing.kind == goal.object and obj != settled and known.knows(state, obj)
    ]
    ready = [obj for obj in wanted if world.meets(state, obj, goal)]
    wanted = ready or wanted
    if not wanted:
        return _search(world, state, known)
    here = [obj for obj in wanted if state.where[obj] == state.at]
    if not here:
        return [Command("go", rec=rec) for rec in sorted({state.where[obj] for obj in wanted})]
    if not world.is_open(state, state.at):
        return [Command("open", rec=state.at)]
    return [Command("take", obj, state.at) for obj in here]


def _settled(world: World, state: State, known: Knowledge, goal: Goal) -> int | None:
    """For `two`: the object that already lies where it should stay."""
    if goal.type != "two":
        return None
    for obj, place in enumerate(state.where):
        if (
            place != NOWHERE
            and world.objects[obj].kind == goal.object
            and world.receptacles[place].kind == goal.target
            and known.knows(state, obj)
        ):
            return obj
    return None


def _search(world: World, state: State, known: Knowledge) -> list[Command]:
    if state.at != NOWHERE and state.at not in known.seen:
        return [Command("open", rec=state.at)]
    return [
        Command("go", rec=rec) for rec in range(len(world.receptacles)) if rec not in known.seen
    ]


def _drop(world: World, state: State) -> list[Command]:
    if state.at == NOWHERE or not world.fits(state.held, state.at):
        places = range(len(world.receptacles))
        return [Command("go", rec=rec) for rec in places if world.fits(state.held, rec)]
    if world.is_open(state, state.at):
        return [Command("put", state.held, state.at)]
    return [Command("open", rec=state.at)]


def _to_lamp(world: World, state: State, known: Knowledge) -> list[Command]:
    lamps = [
        obj
        for obj, thing in enumerate(world.objects)
        if thing.kind == LAMP and known.knows(state, obj)
    ]
    if not lamps:
        return _search(world, state, known)
    here = [obj for obj in lamps if state.where[obj] == state.at]
    if not here:
        return [Command("go", rec=rec) for rec in sorted({state.where[obj] for obj in lamps})]
    if not world.is_open(state, state.at):
        return [Command("open", rec=state.at)]
    return [Command("use", obj) for obj in here]


def _treat(world: World, state: State, goal: Goal) -> list[Command]:
    device = DEVICE[goal.type]
    if state.at != NOWHERE and world.receptacles[state.at].kind == device:
        return [Command(TREATMENTS[goal.type], state.held, state.at)]
    return _go_to_kind(world, device)


def _deliver(world: World, state: State, known: Knowledge, goal: Goal) -> list[Command]:
    settled = _settled(world, state, known, goal)
    if settled is not None:
        targets = [state.where[settled]]
    else:
        targets = [i for i, r in enumerate(world.receptacles) if r.kind == goal.target]
    if state.at not in targets:
        return [Command("go", rec=rec) for rec in targets]
    if not world.is_open(state, state.at):
        return [Command("open", rec=state.at)]
    return [Command("put", state.held, state.at)]


def _go_to_kind(world: World, kind: str) -> list[Command]:
    return [Command("go", rec=i) for i, r in enumerate(world.receptacles) if r.kind == kind]


@dataclass(slots=True)
class Expert:
    """One episode of the expert. Feed it every state with `see`, then ask `act` or `label`.

    `goal` lets a demonstrator pursue something else than the task asks for (it forgets to clean, say).
    """

    world: World
    goal: Goal | None = None
    known: Knowledge = field(init=False)

    def __post_init__(self) -> None:
        self.known = Knowledge(self.world)

    def see(self, state: State) -> None:
        """Take in what `state` shows; call it once for every state that is reached."""
        self.known.observe(state)

    def options(self, state: State) -> list[Command]:
        """All sensible commands in `state`."""
        return sensible(self.world, state, self.known, self.goal)

    def act(self, state: State) -> Command | None:
        """The command the expert gives, or None when it knows of nothing left to try."""
        options = self.options(state)
        if not options:
            return None
        return min(options, key=lambda command: self._rank(state, command))

    def label(self, state: State, command: Command | None) -> Literal[-1, 1]:
        """+1 when `command` is sensible in `state` for what was seen so far, else -1; None is an inadmissible one."""
        return 1 if command is not None and command in self.options(state) else -1

    def _rank(self, state: State, command: Command) -> tuple[int, int]:
        """Likeliest homes first, then the order of the room."""
        if command.verb != "go":
            return 0, command.obj
        goal = self.goal or self.world.goal
        homes = self.world.catalogue.homes[goal.object if state.held == NOTHING else LAMP]
        kind = self.world.receptacles[command.rec].kind
        return (homes.index(kind) if kind in homes else len(homes)), command.rec
