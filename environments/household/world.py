"""The engine: one room, its rules and its goal, as pure functions over an immutable state; it knows no wording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

from environments.household.catalogue import (
    DEVICE,
    KNIVES,
    OPENABLE,
    SIMPLE,
    SLICEABLE,
    Catalogue,
    GoalType,
)

Verb = Literal[
    "go", "open", "close", "take", "put", "clean", "heat", "cool", "use", "examine", "look",
    "inventory", "slice", "help",
]  # fmt: skip
NOWHERE: Final = -1
NOTHING: Final = -1
TREATMENTS: Final[dict[str, Verb]] = {"clean": "clean", "heat": "heat", "cool": "cool"}
"""The verb that treats an object as a goal of this type requires."""


class Command(NamedTuple):
    """One command. `obj` and `rec` are indices into the world's objects and receptacles, -1 where not meant."""

    verb: Verb
    obj: int = NOTHING
    rec: int = NOWHERE


class State(NamedTuple):
    """The changing part of a game. Sets of receptacles or objects are bit masks over their indices.

    `at` and `held` are -1 for nowhere and nothing; `where[o]` is the receptacle of object o, -1 while it is held. `lit` are
    the lamps that were used, `sliced` the objects that were cut.
    """

    at: int
    held: int
    where: tuple[int, ...]
    opened: int
    clean: int = 0
    hot: int = 0
    cold: int = 0
    lit: int = 0
    sliced: int = 0

    def move(self, obj: int, place: int) -> State:
        """Return the state with object `obj` at `place`."""
        return self._replace(where=(*self.where[:obj], place, *self.where[obj + 1 :]))


Until = Literal["", "take", "clean", "heat", "cool"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal; `target` is a kind of receptacle, or of lamp for `look`. With `until` the goal ends with this sub-goal."""

    type: GoalType
    object: str
    target: str
    until: Until = ""

    @property
    def copies(self) -> int:
        """The number of objects that it needs."""
        return 2 if self.type == "two" and not self.until else 1


class Thing(NamedTuple):
    """A named instance: kind and number."""

    kind: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class World:
    """A room and its goal; lamps are objects that stay.

    Attributes:
        receptacles: sorted by kind and number; under ALFWorld's rules as ALFWorld lists them (`params.listed`).
        opened: the openable receptacles that are open at reset, as a bit mask.
        horizon: steps until the episode ends as a failure.
        hint: whether the instruction names the place of the object (simple rules only).
        phrase: the number of the sentence that announces the goal (ALFWorld's rules only).
        remind: whether the instruction names the treatment and its place (simple rules only).
        played: commands that were played before the episode begins.
    """

    receptacles: tuple[Thing, ...]
    objects: tuple[Thing, ...]
    where: tuple[int, ...]
    opened: int
    goal: Goal
    horizon: int
    hint: bool = False
    catalogue: Catalogue = SIMPLE
    phrase: int = 0
    remind: bool = False
    played: tuple[Command, ...] = ()

    @cached_property
    def openable(self) -> int:
        """The receptacles that open and close, as a bit mask."""
        return sum(1 << i for i, thing in enumerate(self.receptacles) if thing.kind in OPENABLE)

    @cached_property
    def object_names(self) -> tuple[str, ...]:
        return tuple(thing.name for thing in self.objects)

    @cached_property
    def receptacle_names(self) -> tuple[str, ...]:
        return tuple(thing.name for thing in self.receptacles)

    @cached_property
    def _ways(self) -> tuple[Command, ...]:
        return tuple(Command("go", rec=rec) for rec in range(len(self.receptacles)))

    @cached_property
    def lamps(self) -> int:
        """The lamps among the objects, as a bit mask."""
        kinds = self.catalogue.lamps
        return sum(1 << i for i, thing in enumerate(self.objects) if thing.kind in kinds)

    # ---- reading -----------------------------------------------------------------------------------------------

    @cached_property
    def before(self) -> tuple[State, ...]:
        """The state at reset, in the middle of the room with empty hands, and the state after each played command."""
        states = [State(NOWHERE, NOTHING, self.where, self.opened)]
        for command in self.played:
            after = self.apply(states[-1], command)
            assert after is not None, f"{self.named(command)!r} was played but does nothing"
            states.append(after)
        return tuple(states)

    def start(self) -> State:
        """Return the state in which an episode begins."""
        return self.before[-1]

    def named(self, command: Command) -> str:
        """Return the text of a command in parameters, as in "take mug 1 fridge 1"."""
        thing = self.object_names[command.obj] if command.obj != NOTHING else ""
        place = self.receptacle_names[command.rec] if command.rec != NOWHERE else ""
        return " ".join(filter(None, (command.verb, thing, place)))

    def of_kind(self, kind: str) -> list[int]:
        return [i for i, thing in enumerate(self.receptacles) if thing.kind == kind]

    def is_open(self, state: State, rec: int) -> bool:
        """Return whether one sees and reaches into receptacle `rec`; one without a door is always open."""
        return bool((state.opened | ~self.openable) >> rec & 1)

    def here(self, state: State) -> list[int]:
        """Return the objects one sees now; none when nowhere or before a closed door."""
        at = state.at
        if at == NOWHERE or not self.is_open(state, at):
            return []
        return [i for i, place in enumerate(state.where) if place == at]

    def lamps_here(self, state: State) -> list[int]:
        """Return the lamps that one can use now; under ALFWorld's rules also behind a closed door."""
        if not self.catalogue.strict:
            return [i for i in self.here(state) if self.lamps >> i & 1]
        places = enumerate(state.where)
        return [i for i, at in places if at == state.at != NOWHERE and self.lamps >> i & 1]

    def meets(self, state: State, obj: int, goal: Goal | None = None) -> bool:
        """Return whether object `obj` is of the goal's kind and treated as the goal requires."""
        goal = goal or self.goal
        if self.objects[obj].kind != goal.object:
            return False
        mask = {"clean": state.clean, "heat": state.hot, "cool": state.cold}.get(goal.type)
        return mask is None or bool(mask >> obj & 1)

    def won(self, state: State, goal: Goal | None = None) -> bool:
        """Return whether `goal` (the world's own by default) holds.

        until: a fitting object is held, or was treated.
        place/clean/heat/cool: a fitting object lies in a receptacle of the target kind. two: two objects of the kind lie
        in one receptacle of the target kind. look: a fitting object is held where a lit lamp of the target kind stands.
        """
        goal = goal or self.goal
        if goal.until == "take":
            return state.held != NOTHING and self.objects[state.held].kind == goal.object
        if goal.until:
            return any(self.meets(state, obj, goal) for obj in range(len(self.objects)))
        if goal.type == "look":
            if state.held == NOTHING or not self.meets(state, state.held, goal):
                return False
            lamps = [i for i in self.lamps_here(state) if self.objects[i].kind == goal.target]
            return any(state.lit >> i & 1 for i in lamps)
        places = [
            place
            for obj, place in enumerate(state.where)
            if place != NOWHERE
            and self.receptacles[place].kind == goal.target
            and self.meets(state, obj, goal)
        ]
        return len(places) > len(set(places)) if goal.type == "two" else bool(places)

    # ---- acting ------------------------------------------------------------------------------------------------

    def apply(self, state: State, command: Command) -> State | None:
        """Return the state after `command`, or None when it is inadmissible and nothing happens."""
        return _RULES[command.verb](self, state, command)

    def admissible(self, state: State) -> list[Command]:
        """Return every admissible command, in a fixed order."""
        at, held = state.at, state.held
        out = [command for command in self._ways if command.rec != at]
        if at != NOWHERE:
            if self.openable >> at & 1:
                out.append(Command("close" if self.is_open(state, at) else "open", rec=at))
            out.extend(self._with_seen(state))
            out.append(Command("examine", rec=at))
        if held != NOTHING:
            out.extend(self._with_held(state))
        out += [Command("look"), Command("inventory")]
        if self.catalogue.strict:
            out.append(Command("help"))
        return out

    def _with_seen(self, state: State) -> list[Command]:
        lamps = self.lamps_here(state)
        out = []
        for obj in sorted({*self.here(state), *lamps}):
            if obj in lamps:
                if self.catalogue.strict or not state.lit >> obj & 1:
                    out.append(Command("use", obj))
            elif state.held == NOTHING:
                out.append(Command("take", obj, state.at))
        return out

    def _with_held(self, state: State) -> list[Command]:
        at, held = state.at, state.held
        out = []
        if at != NOWHERE:
            if self.is_open(state, at) and self.fits(held, at):
                out.append(Command("put", held, at))
            out += [Command(v, held, at) for v in TREATMENTS.values() if self._treats(v, held, at)]
            out += [Command("slice", o) for o in range(len(self.objects)) if self._cuts(state, o)]
        out.append(Command("examine", held))
        return out

    def fits(self, obj: int, rec: int) -> bool:
        """Return whether object `obj` may be put into receptacle `rec`."""
        return self.catalogue.fits(self.objects[obj].kind, self.receptacles[rec].kind)

    def _treats(self, verb: Verb, obj: int, rec: int) -> bool:
        device = self.receptacles[rec].kind == DEVICE[verb]
        return device and self.catalogue.can_be(verb, self.objects[obj].kind)

    def _cuts(self, state: State, obj: int) -> bool:
        """Return whether the held thing cuts object `obj`, which lies here, even behind a closed door."""
        return (
            self.catalogue.strict
            and state.where[obj] == state.at != NOWHERE
            and self.objects[obj].kind in SLICEABLE
            and self.objects[state.held].kind in KNIVES
        )

    # ---- rules -------------------------------------------------------------------------------------------------

    def _go(self, state: State, command: Command) -> State | None:
        return state._replace(at=command.rec) if command.rec != state.at else None

    def _door(self, state: State, command: Command) -> State | None:
        rec = command.rec
        is_open = self.is_open(state, rec)
        if rec != state.at or not self.openable >> rec & 1 or is_open != (command.verb == "close"):
            return None
        return state._replace(opened=state.opened ^ 1 << rec)

    def _take(self, state: State, command: Command) -> State | None:
        obj, rec = command.obj, command.rec
        if state.held != NOTHING or rec != state.at or self.lamps >> obj & 1:
            return None
        if obj not in self.here(state):
            return None
        return state.move(obj, NOWHERE)._replace(held=obj)

    def _holds(self, state: State, command: Command) -> bool:
        """Return whether the command names the held object and the present place."""
        return state.held == command.obj != NOTHING and state.at == command.rec != NOWHERE

    def _put(self, state: State, command: Command) -> State | None:
        obj, rec = command.obj, command.rec
        if not self._holds(state, command) or not self.is_open(state, rec):
            return None
        return state.move(obj, rec)._replace(held=NOTHING) if self.fits(obj, rec) else None

    def _treat(self, state: State, command: Command) -> State | None:
        verb, obj, rec = command
        if not self._holds(state, command) or not self._treats(verb, obj, rec):
            return None
        bit = 1 << obj
        if verb == "clean":
            return state._replace(clean=state.clean | bit)
        if verb == "heat":
            return state._replace(hot=state.hot | bit, cold=state.cold & ~bit)
        return state._replace(hot=state.hot & ~bit, cold=state.cold | bit)

    def _use(self, state: State, command: Command) -> State | None:
        obj = command.obj
        if obj not in self.lamps_here(state):
            return None
        if state.lit >> obj & 1 and not self.catalogue.strict:
            return None
        return state._replace(lit=state.lit | 1 << obj)

    def _examine(self, state: State, command: Command) -> State | None:
        if command.obj != NOTHING:
            return state if command.obj == state.held else None
        return state if command.rec == state.at != NOWHERE else None

    def _slice(self, state: State, command: Command) -> State | None:
        if state.held == NOTHING or not self._cuts(state, command.obj):
            return None
        return state._replace(sliced=state.sliced | 1 << command.obj)

    def _look(self, state: State, command: Command) -> State | None:
        # also the inventory and help
        return state if self.catalogue.strict or command.verb != "help" else None


_RULES: Final[dict[Verb, Callable[[World, State, Command], State | None]]] = {
    "go": World._go,
    "take": World._take,
    "put": World._put,
    "use": World._use,
    "examine": World._examine,
    "slice": World._slice,
    **dict.fromkeys(("open", "close"), World._door),
    **dict.fromkeys(TREATMENTS.values(), World._treat),
    **dict.fromkeys(("look", "inventory", "help"), World._look),
}
