"""The kinds of objects and receptacles of a household, and the six types of goals.

A kind is one lower-case word, the same in all wordings. Under `SIMPLE` rules anything can be put anywhere; `ALFWORLD` has
ALFWorld's rules, for rooms that are drawn by `ROOMS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

GoalType = Literal["place", "look", "clean", "heat", "cool", "two"]
Rules = Literal["simple", "alfworld"]
RoomKind = Literal["kitchen", "livingroom", "bedroom", "bathroom"]

GOAL_TYPES: Final[tuple[GoalType, ...]] = ("place", "look", "clean", "heat", "cool", "two")
"""All goals, commonest first; the place in the list is the rank of a goal in the order of difficulty."""
ROOM_KINDS: Final[tuple[RoomKind, ...]] = ("kitchen", "livingroom", "bedroom", "bathroom")

LAMP: Final = "desklamp"
DEVICE: Final[dict[str, str]] = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The kind of receptacle at which an object is cleaned, heated or cooled."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _homes(table: str) -> dict[str, tuple[str, ...]]:
    """Read the places of each kind of object from a table; a line in capitals names a group of places."""
    groups: dict[str, tuple[str, ...]] = {}
    homes: dict[str, tuple[str, ...]] = {}
    for line in table.strip().splitlines():
        names, _, places = line.partition(":")
        listed = tuple(place for word in places.split() for place in groups.get(word, (word,)))
        (groups if names.isupper() else homes).update(dict.fromkeys(names.split(), listed))
    return homes


OPENABLE: Final = frozenset(_words("cabinet drawer fridge microwave safe"))
CONTAINERS: Final = frozenset(_words("bowl box cup mug pan plate pot"))
"""Kinds of object that could hold others; under ALFWorld's rules they are examined in other words."""
SLICEABLE: Final = frozenset(_words("apple bread egg lettuce potato tomato"))
KNIVES: Final = frozenset(_words("butterknife knife"))
"""Under ALFWorld's rules these cut sliceable objects."""
_TREATED: Final = {
    "clean": _words(
        "mug plate apple potato knife cup bowl tomato fork spoon pan pot egg lettuce cloth soapbar dishsponge butterknife "
        "spatula ladle kettle"
    ),
    "heat": _words("mug plate apple potato cup tomato bread egg"),
    "cool": _words("mug plate apple potato cup bowl tomato bread pan pot egg lettuce winebottle"),
}


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The kinds of one set of rules.

    Attributes:
        homes: where a kind of object, or a lamp, is usually found or put, likeliest first; kinds stand commonest first. Under
            ALFWorld's rules nothing else holds an object; a lamp, which is never moved, may stand anywhere.
        look: kinds of object that a goal `look` may be about; all kinds if empty.
        most: the highest number of one kind in a room.
    """

    rules: Rules
    receptacles: tuple[str, ...]
    homes: Mapping[str, tuple[str, ...]]
    most: int
    look: tuple[str, ...] = ()
    lamps: tuple[str, ...] = (LAMP,)

    @property
    def strict(self) -> bool:
        """Whether things can only be put where they belong, and treated where it makes sense."""
        return self.rules == "alfworld"

    @cached_property
    def objects(self) -> tuple[str, ...]:
        """Kinds of object that can be carried, commonest first."""
        return tuple(kind for kind in self.homes if kind not in self.lamps)

    @cached_property
    def suits(self) -> Mapping[str, frozenset[str]]:
        """Kinds of object by the type of goal that may be about them."""
        objects = self.objects
        suits = {"place": objects, "look": self.look or objects, "two": objects, **_TREATED}
        return {goal: frozenset(kinds) for goal, kinds in suits.items()}

    def fits(self, kind: str, place: str) -> bool:
        """Return whether an object of `kind` can be in a receptacle of kind `place`."""
        return not self.strict or kind in self.lamps or place in self.homes[kind]

    def can_be(self, goal_type: str, kind: str) -> bool:
        """Return whether objects of `kind` can be cleaned, heated or cooled."""
        return not self.strict or kind in self.suits[goal_type]


SIMPLE: Final = Catalogue(
    rules="simple",
    receptacles=_words(
        "cabinet drawer fridge microwave safe sinkbasin countertop stoveburner diningtable garbagecan shelf desk dresser "
        "sidetable bed sofa"
    ),
    homes=_homes("""
DISHES: cabinet countertop diningtable sinkbasin shelf microwave fridge
FOOD: fridge countertop diningtable microwave sinkbasin garbagecan
PAPERS: desk sidetable drawer shelf dresser bed sofa diningtable
CUTLERY: drawer countertop diningtable sinkbasin
WASHING: sinkbasin cabinet drawer shelf countertop garbagecan
VALUABLES: desk drawer safe dresser sidetable shelf bed sofa
mug plate: DISHES
apple potato: FOOD
book: PAPERS
knife: CUTLERY
cup bowl: DISHES
tomato bread: FOOD
fork spoon: CUTLERY
pan: stoveburner countertop cabinet sinkbasin
pen: PAPERS
pillow: bed sofa dresser shelf
egg lettuce: FOOD
cloth soapbar: WASHING
newspaper: PAPERS
cellphone keychain: VALUABLES
laptop: PAPERS
watch: VALUABLES
desklamp: desk sidetable dresser shelf diningtable countertop
"""),
    most=9,  # numbers are single words of the terse vocabulary
    look=_words("book pen newspaper cellphone keychain laptop watch pillow mug bowl plate cloth"),
)

_HOUSE_HOMES: Final = _homes("""
TABLES: countertop diningtable coffeetable sidetable
SEATS: sofa armchair ottoman
DISHES: cabinet TABLES sinkbasin shelf microwave fridge dresser desk
CUTLERY: drawer TABLES sinkbasin
POTS: stoveburner TABLES cabinet sinkbasin
FOOD: fridge TABLES sinkbasin microwave garbagecan
SPICES: cabinet drawer TABLES shelf
BOTTLES: cabinet TABLES shelf desk dresser fridge
PAPERS: desk TABLES drawer shelf dresser
ORNAMENTS: shelf dresser TABLES desk
WASHING: sinkbasin cabinet TABLES drawer toilet cart shelf garbagecan
SUPPLIES: toilet cabinet TABLES shelf drawer cart garbagecan desk
mug: DISHES coffeemachine cart
plate: DISHES
apple potato: FOOD
book: PAPERS bed SEATS cabinet
knife: CUTLERY
cup: DISHES
bowl: DISHES
tomato: FOOD
bread: TABLES fridge microwave garbagecan
fork spoon: CUTLERY
pan: POTS fridge
pot: POTS fridge shelf
pen pencil: PAPERS garbagecan
pillow: bed SEATS
egg: FOOD
lettuce: fridge TABLES sinkbasin garbagecan
cloth: bathtubbasin laundryhamper WASHING desk dresser SEATS
soapbar: bathtubbasin WASHING
newspaper: PAPERS bed SEATS garbagecan toilet cabinet
cellphone: PAPERS safe bed SEATS
keychain: PAPERS safe SEATS
laptop: desk bed TABLES SEATS dresser
watch: PAPERS safe
creditcard: PAPERS safe SEATS
remotecontrol: SEATS PAPERS
alarmclock: ORNAMENTS
cd: PAPERS safe garbagecan cabinet
saltshaker peppershaker: SPICES
dishsponge: bathtubbasin WASHING
butterknife spatula: CUTLERY
ladle: CUTLERY cabinet
kettle: POTS shelf
glassbottle: BOTTLES sinkbasin microwave
winebottle: BOTTLES garbagecan
soapbottle: SUPPLIES
spraybottle: SUPPLIES dresser
toiletpaper: toiletpaperhanger SUPPLIES dresser
handtowel: handtowelholder bathtubbasin WASHING
towel: towelholder
candle: ORNAMENTS toilet cabinet drawer cart
tissuebox: SUPPLIES dresser tvstand
vase: ORNAMENTS cabinet safe cart
statue: ORNAMENTS safe cart
wateringcan: ORNAMENTS cabinet drawer
box: ORNAMENTS SEATS cabinet
basketball: bed desk dresser SEATS TABLES
baseballbat: bed TABLES
tennisracket: bed desk dresser TABLES
plunger: cabinet cart
papertowel: TABLES shelf cart toilet garbagecan
toiletpaperroll: toiletpaperhanger SUPPLIES dresser
desklamp floorlamp: desk sidetable dresser shelf diningtable coffeetable
""")
_HOUSE_PLACES: Final = {at for homes in _HOUSE_HOMES.values() for at in homes}
# The places are ALFWorld's own (`tests/contract/alfworld/constants.json`), except of lamps, for which it has none; a toaster
# takes slices only, a paintinghanger nothing.

ALFWORLD: Final = Catalogue(
    rules="alfworld",
    receptacles=tuple(sorted({"paintinghanger", "toaster", *_HOUSE_PLACES})),
    homes=_HOUSE_HOMES,
    most=30,
    lamps=(LAMP, "floorlamp"),
)


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """A kind of room: receptacles that it always has, how many of a kind it may have, and objects that lie about."""

    always: tuple[str, ...]
    most: dict[str, int]
    objects: tuple[str, ...]
    lamps: bool


def _room(always: str, most: str, objects: str, *, lamps: bool = False) -> RoomPlan:
    pairs = (entry.split() for entry in most.split(","))
    counts = {kind: int(number) for kind, number in pairs}
    return RoomPlan(_words(always), counts, _words(objects), lamps)


ROOMS: Final[dict[RoomKind, RoomPlan]] = {
    "kitchen": _room(
        "cabinet countertop drawer fridge garbagecan microwave sinkbasin",
        "cabinet 16, drawer 10, countertop 3, stoveburner 4, shelf 3, diningtable 2, sidetable 1, coffeemachine 1, "
        "fridge 1, garbagecan 1, microwave 1, sinkbasin 1, toaster 1",
        "mug plate apple potato knife cup bowl tomato bread fork spoon pan pot egg lettuce saltshaker peppershaker "
        "dishsponge butterknife spatula ladle kettle glassbottle winebottle soapbottle vase book cellphone creditcard",
    ),
    "livingroom": _room(
        "coffeetable garbagecan sofa",
        "shelf 5, drawer 5, cabinet 4, sidetable 3, armchair 2, coffeetable 2, sofa 2, diningtable 1, desk 1, "
        "dresser 1, ottoman 1, safe 1, tvstand 1, garbagecan 1",
        "book newspaper pillow laptop remotecontrol keychain watch creditcard cellphone vase statue candle tissuebox box "
        "wateringcan bowl plate pen pencil",
        lamps=True,
    ),
    "bedroom": _room(
        "bed desk garbagecan",
        "drawer 6, shelf 5, sidetable 2, desk 2, cabinet 2, dresser 1, bed 1, laundryhamper 1, safe 1, armchair 1, "
        "garbagecan 1",
        "book pen pencil pillow cd alarmclock cellphone keychain laptop creditcard watch mug bowl basketball baseballbat "
        "tennisracket cloth box tissuebox statue",
        lamps=True,
    ),
    "bathroom": _room(
        "countertop garbagecan sinkbasin toilet",
        "cabinet 6, drawer 4, shelf 3, sinkbasin 2, towelholder 2, handtowelholder 2, countertop 2, bathtubbasin 1, "
        "cart 1, laundryhamper 1, toiletpaperhanger 1, garbagecan 1, toilet 1",
        "soapbar soapbottle spraybottle toiletpaper handtowel towel cloth dishsponge candle tissuebox plunger",
    ),
}
