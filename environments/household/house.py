"""The full house: four kinds of rooms, what stands and lies in them, and what fits where, under ALFWorld's rules.

The names of kinds are the class names of the ALFRED rooms, in lower case as they read in the game. The tables of what
fits where and how rooms are furnished are our own; a game file carries them along, so the real engine plays by them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from environments.household.catalogue import Catalogue
from environments.household.kinds import LAMP

RoomKind = Literal["kitchen", "livingroom", "bedroom", "bathroom"]
ROOM_KINDS: Final[tuple[RoomKind, ...]] = ("kitchen", "livingroom", "bedroom", "bathroom")

_TABLES = ("countertop", "diningtable", "coffeetable", "sidetable")
_DISHES = ("cabinet", *_TABLES, "sinkbasin", "shelf")
_CUTLERY = ("drawer", *_TABLES, "sinkbasin")
_POTS = ("stoveburner", "countertop", "cabinet", "diningtable", "sinkbasin", "fridge")
_FOOD = ("fridge", *_TABLES, "sinkbasin", "microwave", "garbagecan")
_SPICES = ("cabinet", "drawer", *_TABLES, "shelf")
_BOTTLES = ("cabinet", *_TABLES, "shelf", "desk", "dresser")
_PAPERS = ("desk", "sidetable", "drawer", "shelf", "dresser", *_TABLES[1:3], "bed", "sofa")
_SMALL = ("desk", "sidetable", "drawer", "dresser", "shelf", *_TABLES[:3], "safe", "sofa")
_SOFT = ("bed", "sofa", "armchair", "ottoman")
_SPORTS = ("bed", "desk", "dresser", "sofa", "armchair", "coffeetable", "ottoman")
_ORNAMENTS = ("shelf", "dresser", "sidetable", "coffeetable", "diningtable", "desk", "tvstand")
_WASHING = ("sinkbasin", "countertop", "cabinet", "drawer", "toilet", "cart", "shelf", "garbagecan")
_PAPER_ROLLS = (
    *("toilet", "toiletpaperhanger", "cabinet", "drawer", "countertop", "shelf", "cart"),
    *("garbagecan",),
)

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "mug": (*_DISHES, "coffeemachine", "microwave", "fridge", "desk"),
    "plate": (*_DISHES, "microwave", "fridge"),
    "apple": _FOOD,
    "potato": _FOOD,
    "book": _PAPERS,
    "knife": _CUTLERY,
    "cup": (*_DISHES, "microwave", "fridge"),
    "bowl": (*_DISHES, "microwave", "fridge", "dresser"),
    "tomato": _FOOD,
    "bread": (*_TABLES, "fridge", "microwave", "garbagecan"),
    "fork": _CUTLERY,
    "spoon": _CUTLERY,
    "pan": _POTS,
    "pot": _POTS,
    "pen": (*_PAPERS, "garbagecan"),
    "pencil": (*_PAPERS, "garbagecan"),
    "pillow": _SOFT,
    "egg": _FOOD,
    "lettuce": ("fridge", *_TABLES, "sinkbasin", "garbagecan"),
    "cloth": ("bathtubbasin", "laundryhamper", *_WASHING),
    "soapbar": ("bathtubbasin", *_WASHING),
    "newspaper": (*_PAPERS, "garbagecan"),
    "cellphone": (*_SMALL, "bed"),
    "keychain": _SMALL,
    "laptop": ("desk", "bed", "sofa", "coffeetable", "diningtable", "armchair", "ottoman"),
    "watch": _SMALL,
    "creditcard": _SMALL,
    "remotecontrol": ("sofa", "coffeetable", "sidetable", "tvstand", "armchair", "ottoman"),
    "alarmclock": ("desk", "sidetable", "dresser", "shelf"),
    "cd": ("desk", "drawer", "shelf", "sidetable", "dresser", "safe", "garbagecan"),
    "saltshaker": _SPICES,
    "peppershaker": _SPICES,
    "dishsponge": ("bathtubbasin", *_WASHING),
    "butterknife": _CUTLERY,
    "spatula": _CUTLERY,
    "ladle": (*_CUTLERY, "cabinet"),
    "kettle": ("stoveburner", "countertop", "cabinet", "diningtable", "sinkbasin"),
    "glassbottle": (*_BOTTLES, "fridge", "sinkbasin"),
    "winebottle": (*_BOTTLES, "fridge", "garbagecan"),
    "soapbottle": ("countertop", "toilet", "cabinet", "shelf", "drawer", "cart", "garbagecan"),
    "spraybottle": ("cabinet", "toilet", "countertop", "shelf", "cart", "garbagecan"),
    "toiletpaper": _PAPER_ROLLS,
    "handtowel": ("handtowelholder", "bathtubbasin", *_WASHING),
    "towel": ("towelholder",),
    "candle": (*_ORNAMENTS, "toilet", "cabinet", "drawer", "countertop", "cart"),
    "tissuebox": (*_ORNAMENTS, "toilet", "cabinet", "drawer", "countertop", "cart"),
    "vase": (*_ORNAMENTS, "cabinet", "safe"),
    "statue": (*_ORNAMENTS, "safe"),
    "wateringcan": (*_ORNAMENTS[:5], "cabinet", "drawer"),
    "box": ("diningtable", "coffeetable", "sofa", "desk", "dresser", "shelf", "armchair"),
    "basketball": _SPORTS,
    "baseballbat": _SPORTS,
    "tennisracket": _SPORTS,
    LAMP: ("desk", "sidetable", "dresser", "shelf", "diningtable", "coffeetable"),
}

_CLEANABLE = (
    *("mug", "plate", "apple", "potato", "knife", "cup", "bowl", "tomato", "fork", "spoon", "pan"),
    *("pot", "egg", "lettuce", "cloth", "soapbar", "dishsponge", "butterknife", "spatula"),
    *("ladle", "kettle"),
)
_HEATABLE = ("mug", "plate", "apple", "potato", "cup", "tomato", "bread", "egg")
_COOLABLE = (
    *("mug", "plate", "apple", "potato", "cup", "bowl", "tomato", "bread", "pan", "pot", "egg"),
    *("lettuce", "winebottle"),
)
_OBJECTS = tuple(kind for kind in _HOMES if kind != LAMP)

ALFWORLD: Final = Catalogue(
    rules="alfworld",
    receptacles=tuple(sorted({place for homes in _HOMES.values() for place in homes})),
    openable=frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"}),
    objects=_OBJECTS,
    homes=_HOMES,
    suits={
        "place": frozenset(_OBJECTS),
        "two": frozenset(_OBJECTS),
        "look": frozenset(_OBJECTS),
        "clean": frozenset(_CLEANABLE),
        "heat": frozenset(_HEATABLE),
        "cool": frozenset(_COOLABLE),
    },
    most=30,
    containers=frozenset({"bowl", "box", "cup", "mug", "pan", "plate", "pot"}),
    sliceable=frozenset({"apple", "bread", "egg", "lettuce", "potato", "tomato"}),
    knives=frozenset({"butterknife", "knife"}),
)


@dataclass(frozen=True, slots=True)
class Furniture:
    """How a kind of room is furnished.

    Attributes:
        always: kinds of receptacle that every such room has.
        most: kind -> how many of it a room may have; what is drawn is spread in these proportions.
        objects: kinds of object that lie about there.
        lamps: whether a desklamp may stand there.
    """

    always: tuple[str, ...]
    most: dict[str, int]
    objects: tuple[str, ...]
    lamps: bool = False


def _counts(text: str) -> dict[str, int]:
    pairs = (entry.split() for entry in text.split(","))
    return {kind: int(number) for kind, number in pairs}


ROOMS: Final[dict[RoomKind, Furniture]] = {
    "kitchen": Furniture(
        ("cabinet", "countertop", "drawer", "fridge", "garbagecan", "microwave", "sinkbasin"),
        _counts(
            "cabinet 16, drawer 10, countertop 3, stoveburner 4, shelf 3, diningtable 2, sidetable 1, coffeemachine 1, "
            "fridge 1, garbagecan 1, microwave 1, sinkbasin 1"
        ),
        (
            *("mug", "plate", "apple", "potato", "knife", "cup", "bowl", "tomato", "bread"),
            *("fork", "spoon", "pan", "pot", "egg", "lettuce", "saltshaker", "peppershaker"),
            *("dishsponge", "butterknife", "spatula", "ladle", "kettle", "glassbottle"),
            *("winebottle", "soapbottle", "vase", "book", "cellphone", "creditcard"),
        ),
    ),
    "livingroom": Furniture(
        ("coffeetable", "garbagecan", "sofa"),
        _counts(
            "shelf 5, drawer 5, cabinet 4, sidetable 3, armchair 2, coffeetable 2, sofa 2, diningtable 1, desk 1, "
            "dresser 1, ottoman 1, safe 1, tvstand 1, garbagecan 1"
        ),
        (
            *("book", "newspaper", "pillow", "laptop", "remotecontrol", "keychain", "watch"),
            *("creditcard", "cellphone", "vase", "statue", "candle", "tissuebox", "box"),
            *("wateringcan", "bowl", "plate", "pen", "pencil"),
        ),
        lamps=True,
    ),
    "bedroom": Furniture(
        ("bed", "desk", "garbagecan"),
        _counts(
            "drawer 6, shelf 5, sidetable 2, desk 2, cabinet 2, dresser 1, bed 1, laundryhamper 1, safe 1, armchair 1, "
            "garbagecan 1"
        ),
        (
            *("book", "pen", "pencil", "pillow", "cd", "alarmclock", "cellphone", "keychain"),
            *("laptop", "creditcard", "watch", "mug", "bowl", "basketball", "baseballbat"),
            *("tennisracket", "cloth", "box", "tissuebox", "statue"),
        ),
        lamps=True,
    ),
    "bathroom": Furniture(
        ("countertop", "garbagecan", "sinkbasin", "toilet"),
        _counts(
            "cabinet 6, drawer 4, shelf 3, sinkbasin 2, towelholder 2, handtowelholder 2, countertop 2, bathtubbasin 1, "
            "cart 1, laundryhamper 1, toiletpaperhanger 1, garbagecan 1, toilet 1"
        ),
        (
            *("soapbar", "soapbottle", "spraybottle", "toiletpaper", "handtowel", "towel"),
            *("cloth", "dishsponge", "candle", "tissuebox"),
        ),
    ),
}
