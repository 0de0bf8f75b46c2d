"""How commands and observations read: `alfworld` in full sentences, `terse` in single words for tiny models.

A wording turns the engine's commands and states into text. It never decides what happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from environments.household import instruction
from environments.household.kinds import LAMP, MAX_PER_KIND, OBJECTS, RECEPTACLES
from environments.household.options import PlayOptions
from environments.household.params import parse_model
from environments.household.world import NOTHING, NOWHERE, Command, State, World
from triforge.errors import InputError
from triforge.types import Params

MAX_NUMBERED: Final = 50
"""The longest numbered list whose numbers are words of the terse vocabulary."""


class Wording(Protocol):
    """One way of putting a game into words."""

    def command(self, world: World, command: Command) -> str:
        """The text of a command."""
        ...

    def offered(self, world: World, state: State) -> dict[str, Command]:
        """The admissible commands by their text, in the order in which they are listed."""
        ...

    def first(self, world: World, text: str) -> str:
        """The first observation: the room and the instruction `text`."""
        ...

    def after(self, world: World, command: Command, state: State) -> str:
        """The observation after an admissible command that led to `state`."""
        ...

    def nothing(self) -> str:
        """The observation after an inadmissible command."""
        ...

    def won(self, text: str) -> str:
        """The observation after the winning command, whose own observation is `text`."""
        ...

    def numbered(self, commands: Sequence[str]) -> str:
        """The list of commands that is appended to an observation when actions are numbers."""
        ...


class Terse:
    """Two-word commands and few-word observations over a closed vocabulary (`vocabulary`).

    Numbers appear only on receptacles whose kind the room has several of. Objects have no numbers: `take mug` takes the
    mug that was changed by the agent, if one lies here, else the first. Looking around has no words here.
    """

    def command(self, world: World, command: Command) -> str:
        """Verb and noun, as in "go fridge" or "take mug"."""
        verb, obj, rec = command
        if verb in ("go", "open", "close"):
            return f"{verb} {instruction.place_name(world, rec)}"
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
        room = " ".join(instruction.place_name(world, i) for i in range(len(world.receptacles)))
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
    play = parse_model(PlayOptions, {"wording": "terse"} if options is None else options, "options")
    if play.wording != "terse" or play.answer in ("boxed", "tag"):
        raise InputError(
            "household vocabulary: only wording 'terse' without boxed or tagged answers is closed"
        )
    verbs = ("go", "open", "close", "take", "put", "clean", "heat", "cool", "use")
    told = ("task", "room", "empty", "closed", "ok", "fail", "done")
    numbers = range(1, (MAX_NUMBERED if play.actions == "numbered" else MAX_PER_KIND) + 1)
    words = {*verbs, *told, *instruction.WORDS, *OBJECTS, LAMP, *RECEPTACLES, *map(str, numbers)}
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
