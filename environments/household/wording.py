"""How a game reads: its instruction, its commands and its observations, and the way back from an instruction to its goal.

The way back uses no table of the way there, so a goal that was changed without its sentence is caught. `terse` are single
words for tiny models, `alfworld` full sentences; games under ALFWorld's rules read word for word as ALFWorld 0.4 says it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from environments.household.catalogue import LAMP, MAX_PER_KIND, OBJECTS, RECEPTACLES, GoalType
from environments.household.params import PlayOptions
from environments.household.world import NOTHING, NOWHERE, Command, Goal, State, World
from triforge.environments.kit import parse_model
from triforge.errors import InputError
from triforge.types import Params

PHRASES: Final[dict[GoalType, tuple[str, str]]] = {
    "place": ("put a {object} in {target}", "put some {object} on {target}"),
    "look": ("look at {object} under the {target}", "examine the {object} with the {target}"),
    "clean": ("put a clean {object} in {target}", "clean some {object} and put it in {target}"),
    "heat": ("put a hot {object} in {target}", "heat some {object} and put it in {target}"),
    "cool": ("put a cool {object} in {target}", "cool some {object} and put it in {target}"),
    "two": ("put two {object} in {target}", "find two {object} and put them in {target}"),
}


def alfworld_sentence(world: World) -> str:
    """The sentence of a game under ALFWorld's rules; `World.phrase` says which of the two."""
    goal = world.goal
    return PHRASES[goal.type][world.phrase].format(object=goal.object, target=goal.target)


_FORMS: Final[tuple[tuple[str, GoalType | None], ...]] = (
    (r"(?P<how>clean|heat|cool) some (?P<object>\w+) and put it in (?P<target>\w+)", None),
    (r"put a (?P<how>clean|hot|cool) (?P<object>\w+) in (?P<target>\w+)", None),
    (r"put a (?P<object>\w+) in (?P<target>\w+)", "place"),
    (r"put some (?P<object>\w+) on (?P<target>\w+)", "place"),
    (r"(?:put|find) two (?P<object>\w+) (?:and put them )?in (?P<target>\w+)", "two"),
    (r"(?:look at|examine the) (?P<object>\w+) (?:under|with) the (?P<target>\w+)", "look"),
)
_HOW: Final[dict[str, GoalType]] = {"clean": "clean", "heat": "heat", "hot": "heat", "cool": "cool"}


def read_alfworld_sentence(text: str, world: World) -> Goal | None:
    """The goal that a sentence announces, or None when it is no sentence about things of the world's catalogue."""
    for pattern, sort in _FORMS:
        found = re.fullmatch(pattern, text)
        if found is None:
            continue
        goal = Goal(sort or _HOW[found["how"]], found["object"], found["target"])
        known = goal.object in world.catalogue.objects
        places = (LAMP,) if goal.type == "look" else world.catalogue.receptacles
        return goal if known and goal.target in places else None
    return None


_SHAPES: Final[dict[str, str]] = {
    "place": "put some {object} in {target}", "clean": "put clean {object} in {target}",
    "heat": "put hot {object} in {target}", "cool": "put cool {object} in {target}",
    "two": "put two {object} in {target}", "look": "look at {object} under {target}",
}  # fmt: skip
_HINT: Final = " hint {object} in {place}"

WORDS: Final = ("put", "some", "clean", "hot", "cool", "two", "in", "look", "at", "under", "hint")
"""Every word of an instruction that is not a kind."""


def announce(world: World) -> str:
    """The instruction of a game; with its hint, where the first object of the goal's kind lies at reset."""
    if world.catalogue.strict:
        return alfworld_sentence(world)
    goal = world.goal
    text = _SHAPES[goal.type].format(object=goal.object, target=goal.target)
    place = hinted(world)
    if place is None:
        return text
    return text + _HINT.format(object=goal.object, place=place_name(world, place))


def hinted(world: World) -> int | None:
    """The receptacle that the hint names, or None for a game without a hint."""
    if not world.hint:
        return None
    for obj, place in enumerate(world.where):
        if world.objects[obj].kind == world.goal.object and place != NOWHERE:
            return place
    return None


def place_name(world: World, rec: int) -> str:
    """A receptacle's short name: its kind, with its number only where the room has several of the kind."""
    thing = world.receptacles[rec]
    several = sum(other.kind == thing.kind for other in world.receptacles) > 1
    return thing.name if several else thing.kind


_PUT = re.compile(r"put (?P<manner>\w+) (?P<object>\w+) in (?P<target>\w+)(?P<rest>.*)")
_LOOK = re.compile(r"look at (?P<object>\w+) under (?P<target>\w+)(?P<rest>.*)")
_REST = re.compile(r" hint (?P<object>\w+) in (?P<place>\w+(?: \d)?)")


_MANNERS: Final[dict[str | None, GoalType]] = {
    None: "look", "some": "place", "clean": "clean", "hot": "heat", "cool": "cool", "two": "two",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Announced:
    """What a sentence tells the agent: the goal, and where the hint says the object is ("fridge", "cabinet 2")."""

    goal: Goal
    place: str | None = None


def read_announcement(text: str, world: World | None = None) -> Announced | None:
    """What an instruction announces, or None when the sentence is not one of ours."""
    sentence = " ".join(text.lower().split()).removesuffix(".")
    if world is not None and world.catalogue.strict:
        announced = read_alfworld_sentence(sentence, world)
        return Announced(announced) if announced else None
    found = _PUT.fullmatch(sentence) or _LOOK.fullmatch(sentence)
    if found is None:
        return None
    parts = found.groupdict()
    goal = _goal_of(parts.get("manner"), parts["object"], parts["target"])
    if goal is None or not parts["rest"]:
        return Announced(goal) if goal else None
    hint = _REST.fullmatch(parts["rest"])
    if hint is None or hint["object"] != goal.object:
        return None
    return Announced(goal, hint["place"])


def _goal_of(manner: str | None, kind: str, target: str) -> Goal | None:
    if kind not in OBJECTS or target not in (*RECEPTACLES, LAMP):
        return None
    goal_type = _MANNERS.get(manner)
    return Goal(goal_type, kind, target) if goal_type else None


MAX_NUMBERED: Final = 50
"""The longest numbered list whose numbers are words of the terse vocabulary."""


class Terse:
    """Two-word commands and few-word observations over a closed vocabulary (`vocabulary`).

    Numbers appear only on receptacles whose kind the room has several of. Objects have no numbers: `take mug` takes the
    mug that was changed by the agent, if one lies here, else the first. Looking around has no words here.
    """

    def command(self, world: World, command: Command) -> str:
        """Verb and noun, as in "go fridge" or "take mug"."""
        verb, obj, rec = command
        if verb in ("go", "open", "close"):
            return f"{verb} {place_name(world, rec)}"
        return f"{verb} {world.objects[obj].kind}"

    def offered(self, world: World, state: State) -> dict[str, Command]:
        """The admissible commands by text; of objects that read alike, only one can be meant."""
        changed = state.clean | state.hot | state.cold
        out: dict[str, Command] = {}
        for command in world.admissible(state):
            if command.verb in ("examine", "look", "inventory"):
                continue
            text = self.command(world, command)
            if text not in out or (changed >> command.obj & 1 and not changed >> out[text].obj & 1):
                out[text] = command
        return out

    def first(self, world: World, text: str) -> str:
        """As in "task put clean mug in shelf room fridge shelf sinkbasin"."""
        room = " ".join(place_name(world, i) for i in range(len(world.receptacles)))
        return f"task {text} room {room}"

    def after(self, world: World, command: Command, state: State) -> str:
        """What lies here after going or opening ("empty", "closed"), else "ok"."""
        if command.verb not in ("go", "open"):
            return "ok"
        if not world.is_open(state, state.at):
            return "closed"
        return " ".join(world.objects[i].kind for i in world.here(state)) or "empty"

    def nothing(self) -> str:
        """The word for a lost turn."""
        return "fail"

    def won(self, text: str) -> str:
        """The word for success, beside what the last command showed unless that was "ok"."""
        return "done" if text == "ok" else f"{text} done"

    def numbered(self, commands: Sequence[str]) -> str:
        """As in " 1 go fridge 2 go shelf"."""
        return "".join(f" {i} {text}" for i, text in enumerate(commands, start=1))


def vocabulary(options: Params | None = None) -> list[str]:
    """Every word that can occur in the terse wording, sorted: texts are these words with single blanks between."""
    play = parse_model(
        PlayOptions, {"wording": "terse"} if options is None else options, "household options"
    )
    if play.wording != "terse" or play.answer in ("boxed", "tag"):
        raise InputError(
            "household vocabulary: only wording 'terse' without boxed or tagged answers is closed"
        )
    verbs = ("go", "open", "close", "take", "put", "clean", "heat", "cool", "use")
    told = ("task", "room", "empty", "closed", "ok", "fail", "done")
    numbers = range(1, (MAX_NUMBERED if play.actions == "numbered" else MAX_PER_KIND) + 1)
    words = {*verbs, *told, *WORDS, *OBJECTS, LAMP, *RECEPTACLES, *map(str, numbers)}
    return sorted(words)


class Alfworld:
    """Full sentences in the style of ALFWorld; every instance carries its number."""

    def command(self, world: World, command: Command) -> str:
        """As in "go to fridge 1", "move mug 1 to shelf 2" or "clean mug 1 with sinkbasin 1"."""
        verb, obj, rec = command
        thing = world.objects[obj].name if obj != NOTHING else ""
        place = world.receptacles[rec].name if rec != NOWHERE else ""
        match verb:
            case "go":
                return f"go to {place}"
            case "open" | "close":
                return f"{verb} {place}"
            case "take":
                return f"take {thing} from {place}"
            case "put":
                return f"move {thing} to {place}"
            case "clean" | "heat" | "cool":
                return f"{verb} {thing} with {place}"
            case "use" | "examine":
                return f"{verb} {thing or place}"
            case _:
                return verb

    def offered(self, world: World, state: State) -> dict[str, Command]:
        """All admissible commands by their text."""
        return {self.command(world, command): command for command in world.admissible(state)}

    def first(self, world: World, text: str) -> str:
        """The room and the task in three sentences."""
        room = series([thing.name for thing in world.receptacles])
        return (
            "You are in the middle of a room. Looking around, you see "
            f"{room}.\n\nYour task is to: {text}."
        )

    def after(self, world: World, command: Command, state: State) -> str:
        """One or two sentences on what happened and what is seen."""
        verb, obj, rec = command
        thing = world.objects[obj].name if obj != NOTHING else ""
        place = world.receptacles[rec].name if rec != NOWHERE else ""
        match verb:
            case "go":
                return f"You arrive at {place}. {self._sight(world, state)}"
            case "open":
                return f"You open the {place}. {self._sight(world, state)}"
            case "close":
                return f"You close the {place}."
            case "take":
                return f"You pick up the {thing} from the {place}."
            case "put":
                return f"You move the {thing} to the {place}."
            case "clean" | "heat" | "cool":
                return f"You {verb} the {thing} using the {place}."
            case "use":
                return f"You turn on the {thing}."
            case "examine":
                return self._sight(world, state) if rec != NOWHERE else _held(world, state)
            case "look":
                return self._around(world, state)
            case _:
                held = [world.objects[state.held].name] if state.held != NOTHING else []
                return f"You are carrying: {series(held)}."

    def nothing(self) -> str:
        """ALFWorld's sentence for a lost turn."""
        return "Nothing happens."

    def won(self, text: str) -> str:
        """The last observation and the news."""
        return f"{text} You have done your task."

    def numbered(self, commands: Sequence[str]) -> str:
        """One line a command, as in "1: go to fridge 1"."""
        lines = "".join(f"\n{i}: {text}" for i, text in enumerate(commands, start=1))
        return f"\n\nCommands:{lines}"

    def _sight(self, world: World, state: State) -> str:
        place = world.receptacles[state.at].name
        if not world.is_open(state, state.at):
            return f"The {place} is closed."
        things = series([world.objects[i].name for i in world.here(state)])
        if world.openable >> state.at & 1:
            return f"The {place} is open. In it, you see {things}."
        return f"On the {place}, you see {things}."

    def _around(self, world: World, state: State) -> str:
        if state.at == NOWHERE:
            return f"You are in the middle of a room with {series([r.name for r in world.receptacles])}."
        return f"You are facing the {world.receptacles[state.at].name}. {self._sight(world, state)}"


def _held(world: World, state: State) -> str:
    marks = [
        word
        for word, mask in (("clean", state.clean), ("hot", state.hot), ("cool", state.cold))
        if mask >> state.held & 1
    ]
    name = world.objects[state.held].name
    return f"This is a {' and '.join(marks) or 'normal'} {name}."


def series(names: Sequence[str]) -> str:
    """A list in English, as in "a mug 1, and a pen 2"; "nothing" when empty."""
    if not names:
        return "nothing"
    parts = [f"a {name}" for name in names]
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


_HELP: Final = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""

_MIDDLE: Final = "You are in the middle of a room. Looking quickly around you, you see {}."


class Exact(Alfworld):
    """ALFWorld's own sentences, its order of things and its order of commands."""

    def offered(self, world: World, state: State) -> dict[str, Command]:
        """All admissible commands by their text, sorted by it. Cutting names the knife in hand."""
        texts: dict[str, Command] = {}
        for command in world.admissible(state):
            text = self.command(world, command)
            if command.verb == "slice":
                knife = world.objects[state.held].name
                text = f"slice {world.objects[command.obj].name} with {knife}"
            texts[text] = command
        return dict(sorted(texts.items()))

    def first(self, world: World, text: str) -> str:
        """The greeting, the room and the task."""
        room = series([thing.name for thing in world.receptacles])
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{_MIDDLE.format(room)}\n\nYour task is to: {text}."

    def after(self, world: World, command: Command, state: State) -> str:
        """What happened and what is seen."""
        match command.verb:
            case "examine" if command.obj != NOTHING:
                return _examined(world, state, command.obj)
            case "slice":
                knife = world.objects[state.held].name
                return f"You sliced the {world.objects[command.obj].name} with the {knife}."
            case "inventory" if state.held == NOTHING:
                return "You are not carrying anything."
            case "help":
                return _HELP
            case _:
                return super().after(world, command, state)

    def won(self, text: str) -> str:
        """The last observation; ALFWorld says no more."""
        return text

    def _around(self, world: World, state: State) -> str:
        if state.at == NOWHERE:
            return _MIDDLE.format(series([]))  # the room is told at reset only
        place = world.receptacles[state.at].name
        return f"You are facing the {place}. Next to it, you see nothing."


def _examined(world: World, state: State, obj: int) -> str:
    thing = world.objects[obj]
    if thing.kind in world.catalogue.containers:
        return f"This is a normal {thing.name}. In it, you see nothing."
    warmth = "hot" if state.hot >> obj & 1 else "cool" if state.cold >> obj & 1 else ""
    marks = [warmth, "clean" if state.clean >> obj & 1 else ""]
    words = " and ".join(mark for mark in marks if mark)
    if state.sliced >> obj & 1:
        words = f"{words} sliced".strip()
    elif words == "cool":
        words = "cold"
    if not words:
        return f"There's nothing special about {thing.name}."
    return f"This is a {words} {thing.name}."


Wording = Terse | Alfworld
