"""How games under ALFWorld's rules read: word for word as ALFWorld 0.4 says it, so that a policy cannot tell the two apart.

The sentences are ALFWorld's interface; the test against recordings of the real engine holds them.
"""

from __future__ import annotations

from typing import Final

from environments.household.wording import Alfworld, series
from environments.household.world import NOTHING, NOWHERE, Command, State, World

_HELP: Final = "\n".join(
    (
        "Available commands:",
        "  look:                             look around your current location",
        "  inventory:                        check your current inventory",
        "  go to (receptacle):               move to a receptacle",
        "  open (receptacle):                open a receptacle",
        "  close (receptacle):               close a receptacle",
        "  take (object) from (receptacle):  take an object from a receptacle",
        "  move (object) to (receptacle):  place an object in or on a receptacle",
        "  examine (something):              examine a receptacle or an object",
        "  use (object):                     use an object",
        "  heat (object) with (receptacle):  heat an object using a receptacle",
        "  clean (object) with (receptacle): clean an object using a receptacle",
        "  cool (object) with (receptacle):  cool an object using a receptacle",
        "  slice (object) with (object):     slice an object using a sharp object",
        "",
    )
)

_MIDDLE: Final = "You are in the middle of a room. Looking quickly around you, you see {}."


class Exact(Alfworld):
    """ALFWorld's own sentences, its order of things and its order of commands."""

    def offered(self, world: World, state: State) -> dict[str, Command]:
        """All admissible commands by their text, sorted by it. Cutting names the knife in hand."""
        texts: dict[str, Command] = {}
        for command in world.admissible(state):
            text = self.command(world, command)
            if command.verb == "slice":
                text = (
                    f"slice {world.objects[command.obj].name} with {world.objects[state.held].name}"
                )
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
    return (
        f"This is a {words} {thing.name}."
        if words
        else f"There's nothing special about {thing.name}."
    )
