"""The engine: one room, its rules and its goal, as pure functions over an immutable state.

`World` is what never changes in an episode, `State` is what does. `World.apply` returns the next state, or None when
nothing happens. Nothing here knows a wording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from environments.household.catalogue import DEVICE, LAMP, SIMPLE, Catalogue, GoalType

Verb = Literal[
    "go", "open", "close", "take", "put", "clean", "heat", "cool", "use", "examine", "look",
    "inventory", "slice", "help",
]  # fmt: skip
NOWHERE: Final = -1
NOTHING: Final = -1
TREATMENTS: Final[dict[str, Verb]] = {"clean": "clean", "heat": "heat", "cool": "cool"}
"""The verb that makes an object what a goal of this type asks for."""


class Command(NamedTuple):
    """One command. `obj` and `rec` are indices into the world's objects and receptacles, -1 where not meant."""

    verb: Verb
    obj: int = NOTHING
    rec: int = NOWHERE


class State(NamedTuple):
    """Everything that changes. Sets of receptacles or objects are bit masks over their indices.

    `at` and `held` are -1 for nowhere and nothing; `where[o]` is the receptacle of object o, -1 while it is held. `lit` are
    the lamps that were used, `sliced` what was cut.
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


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins. `target` is a kind of receptacle, or "desklamp" for `look`."""

    type: GoalType
    object: str
    target: str


class Thing(NamedTuple):
    """A named instance: kind and number, as in "mug 2"."""

    kind: str
    number: int

    @property
    def name(self) -> str:
        """Kind and number, as in "mug 2"."""
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class World:
    """A room and its goal; lamps are objects that stay.

    Attributes:
        receptacles: sorted by kind and number; under ALFWorld's rules as that lists them (see `params`).
        objects: likewise.
        where: the receptacle of each object at reset.
        opened: the openable receptacles that are open at reset, as a bit mask.
        goal: what wins.
        horizon: steps until the episode ends as a failure.
        hint: whether the instruction says where the object lies (simple rules only).
        catalogue: the rules.
        phrase: which of the sentences for its goal the instruction is (ALFWorld's rules only).
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
    _rules: dict[str, Callable[[State, Command], State | None]] = field(
        init=False, repr=False, compare=False
    )
    openable: int = field(init=False, repr=False, compare=False)
    lamps: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rules = {
            "go": self._go,
            "open": self._open,
            "close": self._close,
            "take": self._take,
            "put": self._put,
            "clean": self._treat,
            "heat": self._treat,
            "cool": self._treat,
            "use": self._use,
            "examine": self._examine,
            "look": lambda state, _: state,
            "inventory": lambda state, _: state,
            "slice": self._slice,
            "help": lambda state, _: state if self.catalogue.strict else None,
        }
        object.__setattr__(self, "_rules", rules)
        kinds = self.catalogue.openable
        openable = sum(1 << i for i, r in enumerate(self.receptacles) if r.kind in kinds)
        object.__setattr__(self, "openable", openable)
        lamps = sum(1 << i for i, o in enumerate(self.objects) if o.kind == LAMP)
        object.__setattr__(self, "lamps", lamps)

    # ---- reading -----------------------------------------------------------------------------------------------

    def start(self) -> State:
        """The state at reset: in the middle of the room, hands empty."""
        return State(NOWHERE, NOTHING, self.where, self.opened)

    def is_open(self, state: State, rec: int) -> bool:
        """Whether one can see into and reach into receptacle `rec` (what cannot be opened is always open)."""
        return bool((state.opened | ~self.openable) >> rec & 1)

    def here(self, state: State) -> list[int]:
        """Indices of the objects one sees now; empty when nowhere or before a closed door."""
        if state.at == NOWHERE or not self.is_open(state, state.at):
            return []
        at = state.at
        return [i for i, place in enumerate(state.where) if place == at]

    def meets(self, state: State, obj: int, goal: Goal | None = None) -> bool:
        """Whether object `obj` is of the goal's kind and has been treated as the goal asks."""
        goal = goal or self.goal
        if self.objects[obj].kind != goal.object:
            return False
        mask = {"clean": state.clean, "heat": state.hot, "cool": state.cold}.get(goal.type)
        return mask is None or bool(mask >> obj & 1)

    def won(self, state: State, goal: Goal | None = None) -> bool:
        """Whether `goal` (the world's own by default) holds.

        place/clean/heat/cool: a fitting object lies in a receptacle of the target kind. two: two objects of the kind lie
        in one receptacle of the target kind. look: a fitting object is held where a lit lamp stands, in sight.
        """
        goal = goal or self.goal
        if goal.type == "look":
            if state.held == NOTHING or not self.meets(state, state.held, goal):
                return False
            return any(state.lit >> i & 1 for i in self.here(state))
        places = [
            place
            for obj, place in enumerate(state.where)
            if place != NOWHERE
            and self.receptacles[place].kind == goal.target
            and self.meets(state, obj, goal)
        ]
        if goal.type == "two":
            return len(places) > len(set(places))
        return bool(places)

    # ---- acting ------------------------------------------------------------------------------------------------

    def apply(self, state: State, command: Command) -> State | None:
        """The state after `command`, or None when it is inadmissible and nothing happens."""
        return self._rules[command.verb](state, command)

    def admissible(self, state: State) -> list[Command]:
        """Every command that does something now, in a fixed order."""
        at, held = state.at, state.held
        out = [Command("go", rec=rec) for rec in range(len(self.receptacles)) if rec != at]
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
        out = []
        strict = self.catalogue.strict
        for obj in self.here(state):
            if self.lamps >> obj & 1:
                if strict or not state.lit >> obj & 1:
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
            out.extend(
                Command(verb, held, at)
                for name, verb in TREATMENTS.items()
                if self._treatable(name, held, at)
            )
            out.extend(
                Command("slice", obj) for obj in range(len(self.objects)) if self._cuts(state, obj)
            )
        out.append(Command("examine", held))
        return out

    def fits(self, obj: int, rec: int) -> bool:
        """Whether object `obj` may be put into receptacle `rec`."""
        return self.catalogue.fits(self.objects[obj].kind, self.receptacles[rec].kind)

    def _treatable(self, name: str, obj: int, rec: int) -> bool:
        if self.receptacles[rec].kind != DEVICE[name]:
            return False
        return self.catalogue.can_be(name, self.objects[obj].kind)

    def _cuts(self, state: State, obj: int) -> bool:
        """Whether the held thing cuts object `obj`, which lies here, even behind a closed door."""
        catalogue = self.catalogue
        return (
            state.where[obj] == state.at != NOWHERE
            and self.objects[obj].kind in catalogue.sliceable
            and self.objects[state.held].kind in catalogue.knives
        )

    # ---- rules -------------------------------------------------------------------------------------------------

    def _go(self, state: State, command: Command) -> State | None:
        return state._replace(at=command.rec) if command.rec != state.at else None

    def _open(self, state: State, command: Command) -> State | None:
        rec = command.rec
        if rec != state.at or not self.openable >> rec & 1 or self.is_open(state, rec):
            return None
        return state._replace(opened=state.opened | 1 << rec)

    def _close(self, state: State, command: Command) -> State | None:
        rec = command.rec
        if rec != state.at or not self.openable >> rec & 1 or not self.is_open(state, rec):
            return None
        return state._replace(opened=state.opened & ~(1 << rec))

    def _take(self, state: State, command: Command) -> State | None:
        obj, rec = command.obj, command.rec
        if state.held != NOTHING or rec != state.at or self.lamps >> obj & 1:
            return None
        if obj not in self.here(state):
            return None
        return state._replace(held=obj, where=_moved(state.where, obj, NOWHERE))

    def _put(self, state: State, command: Command) -> State | None:
        obj, rec = command.obj, command.rec
        if state.held != obj or obj == NOTHING or rec != state.at or rec == NOWHERE:
            return None
        if not self.is_open(state, rec) or not self.fits(obj, rec):
            return None
        return state._replace(held=NOTHING, where=_moved(state.where, obj, rec))

    def _treat(self, state: State, command: Command) -> State | None:
        verb, obj, rec = command
        if state.held != obj or obj == NOTHING or rec != state.at or rec == NOWHERE:
            return None
        if not self._treatable(verb, obj, rec):
            return None
        bit = 1 << obj
        if verb == "clean":
            return state._replace(clean=state.clean | bit)
        if verb == "heat":
            return state._replace(hot=state.hot | bit, cold=state.cold & ~bit)
        return state._replace(hot=state.hot & ~bit, cold=state.cold | bit)

    def _use(self, state: State, command: Command) -> State | None:
        obj = command.obj
        if not self.lamps >> obj & 1 or obj not in self.here(state):
            return None
        if state.lit >> obj & 1 and not self.catalogue.strict:
            return None
        return state._replace(lit=state.lit | 1 << obj)

    def _examine(self, state: State, command: Command) -> State | None:
        if command.obj != NOTHING:
            return state if command.obj == state.held else None
        return state if command.rec == state.at and command.rec != NOWHERE else None

    def _slice(self, state: State, command: Command) -> State | None:
        if state.held == NOTHING or not self._cuts(state, command.obj):
            return None
        return state._replace(sliced=state.sliced | 1 << command.obj)


def _moved(where: tuple[int, ...], obj: int, place: int) -> tuple[int, ...]:
    return (*where[:obj], place, *where[obj + 1 :])
