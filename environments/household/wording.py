"""How a game reads: its instruction, its commands and its observations, and the way back from an instruction to its goal.

The way back uses no table of the way there, so a goal that was changed without its sentence is caught. `terse` are single
words for tiny models, `alfworld` full sentences; games under ALFWorld's rules read word for word as ALFWorld 0.4 says it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from environments.household.catalogue import CONTAINERS, LAMP, SIMPLE, GoalType, Rules
from environments.household.params import PlayOptions
from environments.household.world import NOTHING, NOWHERE, Command, Goal, State, World
from triforge.environments.kit import parse_model
from triforge.errors import InputError
from triforge.types import Params

# ---- instructions -----------------------------------------------------------------------------------------------

_SIMPLE: Final[dict[GoalType, str]] = {
    "place": "put some {object} in {target}",
    "look": "look at {object} under {target}",
    "clean": "put clean {object} in {target}",
    "heat": "put hot {object} in {target}",
    "cool": "put cool {object} in {target}",
    "two": "put two {object} in {target}",
}
_HINT: Final = " hint {object} in {place}"
WORDS: Final = ("put", "some", "clean", "hot", "cool", "two", "in", "look", "at", "under", "hint")
"""Every word of an instruction under the simple rules that is not a kind."""

_ALFWORLD: Final[dict[GoalType, tuple[str, str]]] = {
    "place": ("put a {object} in {target}", "put some {object} on {target}"),
    "look": ("look at {object} under the {target}", "examine the {object} with the {target}"),
    "clean": ("put a clean {object} in {target}", "clean some {object} and put it in {target}"),
    "heat": ("put a hot {object} in {target}", "heat some {object} and put it in {target}"),
    "cool": ("put a cool {object} in {target}", "cool some {object} and put it in {target}"),
    "two": ("put two {object} in {target}", "find two {object} and put them in {target}"),
}


def announce(world: World) -> str:
    """The instruction of a game; with its hint, where the first object of the goal's kind lies at reset."""
    goal, strict = world.goal, world.catalogue.strict
    shape = _ALFWORLD[goal.type][world.phrase] if strict else _SIMPLE[goal.type]
    text = shape.format(object=goal.object, target=goal.target)
    place = hinted(world)
    if place is None:
        return text
    return text + _HINT.format(object=goal.object, place=place_name(world, place))


def hinted(world: World) -> int | None:
    """The receptacle that the hint names, or None for a game without a hint."""
    pairs = zip(world.objects, world.where, strict=True)
    found = (at for thing, at in pairs if thing.kind == world.goal.object and at != NOWHERE)
    return next(found, None) if world.hint else None


def place_name(world: World, rec: int) -> str:
    """A receptacle's short name: its kind, with its number only where the room has several of the kind."""
    thing = world.receptacles[rec]
    return thing.name if len(world.of_kind(thing.kind)) > 1 else thing.kind


_FORMS: Final[dict[Rules, tuple[str, ...]]] = {
    "simple": (
        r"put (?P<how>some|clean|hot|cool|two) (?P<object>\w+) in (?P<target>\w+)"
        r"( hint (?P<hinted>\w+) in (?P<place>\w+( \d)?))?",
        r"(?P<how>look) at (?P<object>\w+) under (?P<target>\w+)"
        r"( hint (?P<hinted>\w+) in (?P<place>\w+( \d)?))?",
    ),
    "alfworld": (
        r"(?P<how>clean|heat|cool) some (?P<object>\w+) and put it in (?P<target>\w+)",
        r"put a (?P<how>clean|hot|cool) (?P<object>\w+) in (?P<target>\w+)",
        r"put (?P<how>a) (?P<object>\w+) in (?P<target>\w+)",
        r"put (?P<how>some) (?P<object>\w+) on (?P<target>\w+)",
        r"(?:put|find) (?P<how>two) (?P<object>\w+) (?:and put them )?in (?P<target>\w+)",
        r"(?P<how>look) at (?P<object>\w+) under the (?P<target>\w+)",
        r"(?P<how>examine) the (?P<object>\w+) with the (?P<target>\w+)",
    ),
}
_HOW: Final[dict[str, GoalType]] = {
    "a": "place", "some": "place", "look": "look", "examine": "look", "clean": "clean",
    "heat": "heat", "hot": "heat", "cool": "cool", "two": "two",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Announced:
    """What a sentence tells the agent: the goal, and where the hint says the object is ("fridge", "cabinet 2")."""

    goal: Goal
    place: str | None = None


def read_announcement(text: str, world: World | None = None) -> Announced | None:
    """What an instruction announces under the rules of a game, or None when the sentence is not one of ours."""
    catalogue = world.catalogue if world is not None else SIMPLE
    sentence = " ".join(text.lower().split()).removesuffix(".")
    matches = (re.fullmatch(form, sentence) for form in _FORMS[catalogue.rules])
    found = next(filter(None, matches), None)
    if found is None:
        return None
    parts = found.groupdict()
    goal = Goal(_HOW[parts["how"]], parts["object"], parts["target"])
    targets = catalogue.lamps if goal.type == "look" else catalogue.receptacles
    known = goal.object in catalogue.objects and goal.target in targets
    if not known or parts.get("hinted") not in (None, goal.object):
        return None
    return Announced(goal, parts.get("place"))


# ---- single words -----------------------------------------------------------------------------------------------

MAX_NUMBERED: Final = 50
"""The longest numbered list whose numbers are words of the terse vocabulary."""


class Terse:
    """Two-word commands and few-word observations over a closed vocabulary (`vocabulary`).

    Numbers appear only on receptacles whose kind the room has several of. Objects have no numbers: `take mug` takes the
    mug that was changed by the agent, if one lies here, else the first. Looking around has no words here.
    """

    nothing = "fail"

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

    def won(self, text: str) -> str:
        """The word for success, beside what the last command showed unless that was "ok"."""
        return "done" if text == "ok" else f"{text} done"

    def numbered(self, commands: Sequence[str]) -> str:
        """As in " 1 go fridge 2 go shelf"."""
        return "".join(f" {i} {text}" for i, text in enumerate(commands, start=1))


def vocabulary(options: Params | None = None) -> list[str]:
    """Every word that can occur in the terse wording, sorted: texts are these words with single blanks between."""
    given: Params = {"wording": "terse"} if options is None else options
    play = parse_model(PlayOptions, given, "household options")
    if play.wording != "terse" or play.answer in ("boxed", "tag"):
        raise InputError(
            "household vocabulary: only wording 'terse' without boxed or tagged answers is closed"
        )
    verbs = ("go", "open", "close", "take", "put", "clean", "heat", "cool", "use")
    answers = ("task", "room", "empty", "closed", "ok", "fail", "done")
    numbers = range(1, (MAX_NUMBERED if play.actions == "numbered" else SIMPLE.most) + 1)
    kinds = (*SIMPLE.objects, LAMP, *SIMPLE.receptacles)
    return sorted({*verbs, *answers, *WORDS, *kinds, *map(str, numbers)})


# ---- sentences --------------------------------------------------------------------------------------------------

_COMMANDS: Final = {
    "go": ("go to ", ""),
    "take": ("take ", " from "),
    "put": ("move ", " to "),
    "clean": ("clean ", " with "),
    "heat": ("heat ", " with "),
    "cool": ("cool ", " with "),
}  # what stands before the thing, and between it and the place; of the others: the verb, and the one of both that there is
_AFTER: Final = {
    "go": "You arrive at {place}. {sight}",
    "open": "You open the {place}. {sight}",
    "close": "You close the {place}.",
    "take": "You pick up the {thing} from the {place}.",
    "put": "You move the {thing} to the {place}.",
    "clean": "You clean the {thing} using the {place}.",
    "heat": "You heat the {thing} using the {place}.",
    "cool": "You cool the {thing} using the {place}.",
    "use": "You turn on the {thing}.",
    "slice": "You sliced the {thing} with the {held}.",
}


def series(names: Sequence[str]) -> str:
    """A list in English, as in "a mug 1, and a pen 2"; "nothing" when empty."""
    parts = [f"a {name}" for name in names]
    if len(parts) < 2:
        return parts[0] if parts else "nothing"
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


class Alfworld:
    """Full sentences in the style of ALFWorld; every instance carries its number."""

    nothing = "Nothing happens."

    def command(self, world: World, command: Command) -> str:
        """As in "go to fridge 1", "move mug 1 to shelf 2" or "clean mug 1 with sinkbasin 1"."""
        verb, obj, rec = command
        thing = world.object_names[obj] if obj != NOTHING else ""
        place = world.receptacle_names[rec] if rec != NOWHERE else ""
        if verb in _COMMANDS:
            before, between = _COMMANDS[verb]
            return f"{before}{thing}{between}{place}"
        return f"{verb} {thing or place}".rstrip()

    def offered(self, world: World, state: State) -> dict[str, Command]:
        return {self.command(world, command): command for command in world.admissible(state)}

    def first(self, world: World, text: str) -> str:
        room = series([thing.name for thing in world.receptacles])
        return (
            "You are in the middle of a room. Looking around, you see "
            f"{room}.\n\nYour task is to: {text}."
        )

    def after(self, world: World, command: Command, state: State) -> str:
        verb, obj, rec = command
        held = world.objects[state.held].name if state.held != NOTHING else ""
        if shape := _AFTER.get(verb):
            return shape.format(
                thing=world.objects[obj].name if obj != NOTHING else "",
                place=world.receptacles[rec].name if rec != NOWHERE else "",
                held=held,
                sight=self._sight(world, state) if verb in ("go", "open") else "",
            )
        if verb == "examine":
            return self._sight(world, state) if rec != NOWHERE else self._held(world, state)
        if verb == "look":
            return self._around(world, state)
        return f"You are carrying: {series([held] if held else [])}."

    def won(self, text: str) -> str:
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

    def _held(self, world: World, state: State) -> str:
        marks = (("clean", state.clean), ("hot", state.hot), ("cool", state.cold))
        words = [word for word, mask in marks if mask >> state.held & 1]
        return f"This is a {' and '.join(words) or 'normal'} {world.objects[state.held].name}."


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
                text += f" with {world.objects[state.held].name}"
            texts[text] = command
        return dict(sorted(texts.items()))

    def first(self, world: World, text: str) -> str:
        room = series([thing.name for thing in world.receptacles])
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{_MIDDLE.format(room)}\n\nYour task is to: {text}."

    def after(self, world: World, command: Command, state: State) -> str:
        if command.verb == "help":
            return _HELP
        if command.verb == "inventory" and state.held == NOTHING:
            return "You are not carrying anything."
        return super().after(world, command, state)

    def won(self, text: str) -> str:
        """The last observation; ALFWorld says no more."""
        return text

    def _around(self, world: World, state: State) -> str:
        if state.at == NOWHERE:
            return _MIDDLE.format(series([]))  # the room is told at reset only
        place = world.receptacles[state.at].name
        return f"You are facing the {place}. Next to it, you see nothing."

    def _held(self, world: World, state: State) -> str:
        obj, thing = state.held, world.objects[state.held]
        if thing.kind in CONTAINERS:
            return f"This is a normal {thing.name}. In it, you see nothing."
        marks = (("hot", state.hot), ("cool", state.cold), ("clean", state.clean))
        words = " and ".join(word for word, mask in marks if mask >> obj & 1)
        if state.sliced >> obj & 1:
            words = f"{words} sliced".strip()
        elif words == "cool":
            words = "cold"
        if not words:
            return f"There's nothing special about {thing.name}."
        return f"This is a {words} {thing.name}."


Wording = Terse | Alfworld
