"""The games and command sequences in which the household's engine is compared with ALFWorld's, and the comparison.

Some sequences follow a plan, some the expert, some are random; all contain commands that mean nothing. They are chosen on the
household's engine; where the other engine goes another way, the comparison says at which command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from environments.alfworld.engine import Seen
from environments.household.catalogue import KNIVES, ROOM_KINDS, SLICEABLE
from environments.household.episode import Episode
from environments.household.generator import generate
from environments.household.params import PlayOptions, params_of, world_of
from environments.household.planner import Expert, plan
from environments.household.wording import announce
from environments.household.world import World
from triforge.types import Params

GAMES: Final = 60  # that are drawn; the last one is `MADE`
SEED: Final = 21  # so that every type of goal is won and every mark of a thing is read
LONGEST: Final = 25  # commands of one game
_PROBES: Final = 4  # of the kitchens
_WRONG: Final = 0.1  # share of commands that mean nothing


MADE: Final[Params] = {
    "rules": "alfworld",
    "receptacles": {
        "cabinet 1": "closed",
        "cabinet 2": "closed",
        "cart 1": "open",
        "sidetable 1": "open",
        "toaster 1": "open",
        "tvstand 1": "open",
    },
    "objects": {
        "desklamp 1": "sidetable 1",
        "floorlamp 1": "cabinet 2",
        "laptop 1": "sidetable 1",
        "plunger 1": "cabinet 1",
        "tissuebox 1": "tvstand 1",
    },
    "goal": {"type": "look", "object": "laptop", "target": "floorlamp"},
    "phrase": 1,
}
"""A room with what rooms that are drawn seldom or never have: lamps of both kinds, one behind a door, and a toaster."""
_MADE_PLAYED: Final = (
    "go to  toaster 1", "go to toaster 1 ", "go to cabinet  1", "examine toaster 1", "go to cabinet 1", "open cabinet 1",
    "take plunger  1 from cabinet 1", "take plunger 1 from cabinet 1", "go to sidetable 1", "move plunger 1 to sidetable 1",
    "go to cart 1", "move plunger 1 to cart 1", "go to tvstand 1", "take tissuebox 1 from tvstand 1",
    "move tissuebox 1 to tvstand 1", "go to sidetable 1", "use desklamp 1", "take laptop 1 from sidetable 1",
    "move laptop 1 to sidetable 1", "take laptop 1 from sidetable 1", "go to cabinet 2", "use  floorlamp 1", "use floorlamp 1",
)  # fmt: skip


class GameEngine(Protocol):
    """An engine that plays one game: the real one, or a recording of it."""

    @property
    def first(self) -> Seen: ...

    def step(self, command: str) -> Seen: ...


def worlds() -> list[World]:
    """Return the games: every kind of room and every type of goal, doors open and shut; and `MADE`."""
    made: list[World] = []
    for number, room in enumerate(ROOM_KINDS):
        wanted: Params = {
            "rules": "alfworld",
            "rooms": [room],
            "closed": 0.8,
            "receptacles": [8, 26],
        }
        made += generate(count=GAMES // len(ROOM_KINDS), seed=SEED + number, options=wanted)
    return [*made, world_of(MADE)]


def commands(world: World, number: int) -> Iterator[str]:
    """Return a sequence for game `number`: the first few do all there is to do to one thing; then `_wander`; the last is written down."""
    if number == GAMES:
        return iter(_MADE_PLAYED)
    if number < _PROBES:
        return iter(_probe(world, cut=number % 2 == 0)[:LONGEST])
    return _wander(world, number)


def _probe(world: World, *, cut: bool) -> list[str]:
    """Everything that can be done to one thing of a kitchen, which is looked at after every change."""

    def reach(name: str) -> list[str]:
        place = places[name]
        return [f"go to {place}", f"open {place}", f"take {name} from {place}"]

    start = {thing.name: place for thing, place in zip(world.objects, world.where, strict=True)}
    places = {name: world.receptacles[place].name for name, place in start.items()}
    kinds = SLICEABLE if cut else world.catalogue.suits["heat"]
    thing = next((name for name in places if name.split()[0] in kinds), "apple 1")
    knife = next((name for name in places if name.split()[0] in KNIVES), "knife 1")
    out = []
    if cut and {thing, knife} <= set(places):
        out += [*reach(knife), *reach(thing)[:2], f"slice {thing} with {knife}"]
        out += ["go to sinkbasin 1", f"move {knife} to sinkbasin 1"]
    out += [*reach(thing), f"examine {thing}"] if thing in places else []
    for verb, device in (("clean", "sinkbasin 1"), ("heat", "microwave 1"), ("cool", "fridge 1")):
        out += [f"go to {device}", f"{verb} {thing} with {device}", f"examine {thing}"]
    return out


def _wander(world: World, number: int) -> Iterator[str]:
    """Yield a shortest plan with noise between, the expert with slips, or random commands throughout."""
    rng = Random(f"commands {number}")  # noqa: S311
    episode, expert = Episode(world, PlayOptions(), announce(world)), Expert(world)
    steps = iter(plan(world) or [])
    slips = (0.0, 0.3, 1.0)[number % 3]
    for _ in range(LONGEST):
        expert.see(episode.state)
        if rng.random() < _WRONG:
            wrong = _wrong(world) if slips else ["", "dance"]
            command = rng.choice(wrong)
        elif rng.random() < slips:
            command = _any(rng, episode)
        else:
            wise = next(steps) if not slips else expert.act(episode.state)
            command = episode.say(wise) if wise is not None else "look"
        yield command
        episode.play(command)
        if episode.done:
            return


def _any(rng: Random, episode: Episode) -> str:
    """Return a random admissible command; verbs are evenly likely, so that it does more than walk about."""
    offered = episode.commands()
    if rng.random() < 0.8:  # these three change nothing
        offered = tuple(text for text in offered if text not in ("help", "inventory", "look"))
    verb = rng.choice(sorted({text.split()[0] for text in offered}))
    return rng.choice([text for text in offered if text.split()[0] == verb])


def _wrong(world: World) -> list[str]:
    place, thing = world.receptacles[0].name, world.objects[0].name
    return [
        "",
        "dance",
        f"go to  {place}",
        f"go to {thing}",
        f"open {thing}",
        f"move {thing} to {place}",
        f"take {thing} from {place}",
        f"clean {thing} with {place}",
        f"examine {thing}",
        f"examine {place}",
        f"slice {thing} with knife 1",
        f"use {thing}",
        f"close {place}",
    ]


def difference(world: World, sequence: Iterable[str], engine: GameEngine) -> str | None:
    """Return the first thing in which the household and `engine` differ, or None when they agree to the end."""
    episode = Episode(world, PlayOptions(), announce(world))
    observation = episode.start().observation
    found = _unlike("reset", Seen(observation.text, observation.admissible, False), engine.first)
    for command in sequence:
        if found is not None:
            return found
        result = episode.play(command)
        seen = Seen(result.observation.text, episode.commands(), bool(result.success))
        found = _unlike(repr(command), seen, engine.step(command))
    return found


def _unlike(command: str, ours: Seen, theirs: Seen) -> str | None:
    if ours.text != theirs.text:
        return f"{command}: the household says {ours.text!r}, ALFWorld {theirs.text!r}"
    if ours.commands != theirs.commands:
        more, fewer = (
            set(ours.commands) - set(theirs.commands),
            set(theirs.commands) - set(ours.commands),
        )
        return f"{command}: the household also offers {sorted(more)}, ALFWorld {sorted(fewer)}"
    if ours.won != theirs.won:
        return f"{command}: won is {ours.won} in the household, {theirs.won} in ALFWorld"
    return None


# ---- recordings -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recording:
    """One game as the real engine played it; a `GameEngine` that expects the recorded commands in their order."""

    params: Params
    sequence: list[str]
    seen: list[Seen]
    _at: int = 0

    @property
    def first(self) -> Seen:
        return self.seen[0]

    def step(self, command: str) -> Seen:
        assert command == self.sequence[self._at], f"recorded was {self.sequence[self._at]!r}"
        self._at += 1
        return self.seen[self._at]


def record(world: World, sequence: list[str], engine: GameEngine) -> dict[str, object]:
    """Play a game in the real engine and return its texts as JSON. Commands are kept as changes of the list before."""
    before: tuple[str, ...] = ()
    lines = []
    for command in (None, *sequence):
        seen = engine.first if command is None else engine.step(command)
        gone = [text for text in before if text not in seen.commands]
        new = [text for text in seen.commands if text not in before]
        lines.append([command, seen.text, seen.won, gone, new])
        before = seen.commands
    return {"params": params_of(world), "lines": lines}


def recorded(entry: dict[str, Any]) -> Recording:
    offered: set[str] = set()
    seen: list[Seen] = []
    sequence: list[str] = []
    for command, text, won, gone, new in entry["lines"]:
        offered = offered.difference(gone).union(new)
        seen.append(Seen(text, tuple(sorted(offered)), won))
        if command is not None:
            sequence.append(command)
    return Recording(entry["params"], sequence, seen)
