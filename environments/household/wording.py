"""The words of a game: its instruction, its commands and its observations.

`Terse` has single words for tiny models, `Alfworld` full sentences; `Exact` has word for word those of ALFWorld 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from environments.household.catalogue import CONTAINERS, DEVICE, LAMP, SIMPLE, GoalType
from environments.household.params import PlayOptions
from environments.household.world import NOTHING, NOWHERE, Command, State, World
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
_TREAT: Final = " hint {treat} {object} in {device}"
WORDS: Final = (
    "put", "some", "clean", "heat", "hot", "cool", "two", "take", "in", "look", "at", "under", "hint",
)  # fmt: skip
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
    """Return the instruction of a game; hints name the place of the first object of the goal's kind at reset, and the treatment."""
    goal, strict = world.goal, world.catalogue.strict
    if goal.until:
        text = f"{goal.until} {goal.object}"
    else:
        shape = _ALFWORLD[goal.type][world.phrase] if strict else _SIMPLE[goal.type]
        text = shape.format(object=goal.object, target=goal.target)
    if world.remind:
        text += _TREAT.format(treat=goal.type, object=goal.object, device=DEVICE[goal.type])
    place = hinted(world)
    if place is None:
        return text
    return text + _HINT.format(object=goal.object, place=place_name(world, place))


def hinted(world: World) -> int | None:
    """Return the receptacle that the hint names, or None for a game without a hint."""
    pairs = zip(world.objects, world.where, strict=True)
    places = (at for thing, at in pairs if thing.kind == world.goal.object and at != NOWHERE)
    return next(places, None) if world.hint else None


def place_name(world: World, rec: int) -> str:
    """Return the short name of a receptacle: its kind, with its number only where the room has several of the kind."""
    thing = world.receptacles[rec]
    return thing.name if len(world.of_kind(thing.kind)) > 1 else thing.kind


# ---- single words -----------------------------------------------------------------------------------------------


class Terse:
    """Two-word commands and few-word observations over a closed vocabulary (`vocabulary`).

    Receptacles have numbers only where the room has several of a kind. Objects have none: `take mug` takes a mug that the agent
    has changed, if one lies here, else the first. There are no commands to look around.
    """

    nothing = "fail"
    turn = " {} {}"

    def command(self, world: World, command: Command) -> str:
        """Return verb and noun, as in "go fridge" or "take mug"."""
        verb, obj, rec = command
        if verb in ("go", "open", "close"):
            return f"{verb} {place_name(world, rec)}"
        return f"{verb} {world.objects[obj].kind}"

    def offered(self, world: World, state: State) -> dict[str, Command]:
        """Return the admissible commands by text; one of several objects of the same name."""
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
        """Return, for example, "task put clean mug in shelf room fridge shelf sinkbasin"."""
        room = " ".join(place_name(world, i) for i in range(len(world.receptacles)))
        return f"task {text} room {room}"

    def after(self, world: World, command: Command, state: State) -> str:
        """Return the objects here after going or opening ("empty", "closed"), else "ok"."""
        if command.verb not in ("go", "open"):
            return "ok"
        if not world.is_open(state, state.at):
            return "closed"
        return " ".join(world.objects[i].kind for i in world.here(state)) or "empty"

    def won(self, text: str) -> str:
        """Add the word for success to the last observation, or put it in the place of "ok"."""
        return "done" if text == "ok" else f"{text} done"


def vocabulary(options: Params | None = None) -> list[str]:
    """Return every word of the terse wording, sorted: texts are these words with single blanks between."""
    terse: Params = {"wording": "terse"}
    play = parse_model(PlayOptions, options or terse, "household options")
    if play.wording != "terse" or play.answer in ("boxed", "tag"):
        raise InputError(
            "household vocabulary: only wording 'terse' without boxed or tagged answers is closed"
        )
    verbs = ("go", "open", "close", "take", "put", "clean", "heat", "cool", "use")
    answers = ("task", "room", "empty", "closed", "ok", "fail", "done")
    numbers = range(1, SIMPLE.most + 1)
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
}  # the words before the thing, and between it and the place; other commands are the verb and one of the two
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
    """Return a list in English, as in "a mug 1, and a pen 2"; "nothing" when empty."""
    parts = [f"a {name}" for name in names]
    if len(parts) < 2:
        return parts[0] if parts else "nothing"
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


class Alfworld:
    """Full sentences in the style of ALFWorld; every instance carries its number."""

    nothing = "Nothing happens."
    turn = "\n\n> {}\n{}"

    def command(self, world: World, command: Command) -> str:
        """Return, for example, "go to fridge 1", "move mug 1 to shelf 2" or "clean mug 1 with sinkbasin 1"."""
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
        """Return the admissible commands by their text, sorted by it. Cutting names the knife in hand."""
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
        """Return the last observation, to which ALFWorld adds nothing."""
        return text

    def _around(self, world: World, state: State) -> str:
        if state.at == NOWHERE:
            return _MIDDLE.format(series([]))  # the room is described at reset only
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
