"""What there is in a household and what can be done with it: the six goals, and one closed list a set of rules.

A kind is one lower-case word, the same in all wordings. `SIMPLE` are the rules of the small rooms, where anything can be put
anywhere; `ALFWORLD` are ALFWorld's, which also draw whole rooms (`ROOMS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

GoalType = Literal["place", "look", "clean", "heat", "cool", "two"]

GOAL_TYPES: Final[tuple[GoalType, ...]] = ("place", "look", "clean", "heat", "cool", "two")
"""All goals, commonest first; the place in the list is the rank that "rarer" means in a rewrite."""

LAMP: Final = "desklamp"

OPENABLE: Final = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})

RECEPTACLES: Final[tuple[str, ...]] = (
    "cabinet", "drawer", "fridge", "microwave", "safe", "sinkbasin", "countertop", "stoveburner",
    "diningtable", "garbagecan", "shelf", "desk", "dresser", "sidetable", "bed", "sofa",
)  # fmt: skip

DEVICE: Final[dict[str, str]] = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The kind of receptacle at which an object is cleaned, heated or cooled."""

LAMP_HOMES: Final = ("desk", "sidetable", "dresser", "shelf", "diningtable", "countertop")

_DISHES = ("cabinet", "countertop", "diningtable", "sinkbasin", "shelf", "microwave", "fridge")
_CUTLERY = ("drawer", "countertop", "diningtable", "sinkbasin")
_PANS = ("stoveburner", "countertop", "cabinet", "sinkbasin")
_FOOD = ("fridge", "countertop", "diningtable", "microwave", "sinkbasin", "garbagecan")
_PAPERS = ("desk", "sidetable", "drawer", "shelf", "dresser", "bed", "sofa", "diningtable")
_VALUABLES = ("desk", "drawer", "safe", "dresser", "sidetable", "shelf", "bed", "sofa")
_CUSHIONS = ("bed", "sofa", "dresser", "shelf")
_WASHING = ("sinkbasin", "cabinet", "drawer", "shelf", "countertop", "garbagecan")

HOMES: Final[dict[str, tuple[str, ...]]] = {
    "mug": _DISHES, "plate": _DISHES, "apple": _FOOD, "potato": _FOOD, "book": _PAPERS,
    "knife": _CUTLERY, "cup": _DISHES, "bowl": _DISHES, "tomato": _FOOD, "bread": _FOOD,
    "fork": _CUTLERY, "spoon": _CUTLERY, "pan": _PANS, "pen": _PAPERS, "pillow": _CUSHIONS,
    "egg": _FOOD, "lettuce": _FOOD, "cloth": _WASHING, "soapbar": _WASHING, "newspaper": _PAPERS,
    "cellphone": _VALUABLES, "keychain": _VALUABLES, "laptop": _PAPERS, "watch": _VALUABLES,
}  # fmt: skip
"""Where a kind of object is usually found or put, likeliest first. Commonest kinds of object first."""

OBJECTS: Final[tuple[str, ...]] = tuple(HOMES)

SUITS: Final[dict[str, frozenset[str]]] = {
    "place": frozenset(OBJECTS),
    "two": frozenset(OBJECTS),
    "look": frozenset(
        {"book", "pen", "newspaper", "cellphone", "keychain", "laptop", "watch", "pillow", "mug"}
        | {"bowl", "plate", "cloth"}
    ),
    "clean": frozenset(
        {"mug", "plate", "apple", "potato", "knife", "cup", "bowl", "tomato", "fork", "spoon"}
        | {"pan", "egg", "lettuce", "cloth", "soapbar"}
    ),
    "heat": frozenset({"mug", "plate", "apple", "potato", "cup", "tomato", "bread", "egg"}),
    "cool": frozenset(
        {"mug", "plate", "apple", "potato", "cup", "bowl", "tomato", "bread", "pan", "egg"}
        | {"lettuce"}
    ),
}
"""The kinds of object for which a goal makes sense."""

MAX_PER_KIND: Final = 9
"""Instance numbers are single digits, so that they are single words of the terse vocabulary."""


Rules = Literal["simple", "alfworld"]


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The kinds of one set of rules.

    Attributes:
        rules: the name of the rules.
        receptacles: kinds of receptacle.
        openable: those that open and close.
        objects: kinds of object that can be carried, commonest first.
        homes: where a kind of object, or the lamp, is usually found or put, likeliest first. Under ALFWorld's rules nothing
            else holds it.
        suits: goal type -> kinds of object for which it makes sense. Under ALFWorld's rules only these can be cleaned,
            heated or cooled.
        containers: kinds of object that could hold others; they read differently when examined.
        sliceable: kinds of object that a knife cuts.
        knives: kinds of object that cut.
        most: the highest number of one kind in a room.
    """

    rules: Rules
    receptacles: tuple[str, ...]
    openable: frozenset[str]
    objects: tuple[str, ...]
    homes: Mapping[str, tuple[str, ...]]
    suits: Mapping[str, frozenset[str]]
    most: int
    containers: frozenset[str] = field(default_factory=frozenset)
    sliceable: frozenset[str] = field(default_factory=frozenset)
    knives: frozenset[str] = field(default_factory=frozenset)

    @property
    def strict(self) -> bool:
        """Whether things can only be put where they belong, and treated where it makes sense."""
        return self.rules == "alfworld"

    def fits(self, kind: str, place: str) -> bool:
        """Whether an object of `kind` can be put into a receptacle of kind `place`."""
        return not self.strict or place in self.homes[kind]

    def can_be(self, goal_type: str, kind: str) -> bool:
        """Whether objects of `kind` can be cleaned, heated or cooled (by the type of the goal that asks for it)."""
        return not self.strict or kind in self.suits[goal_type]


SIMPLE: Final = Catalogue(
    rules="simple",
    receptacles=RECEPTACLES,
    openable=OPENABLE,
    objects=OBJECTS,
    homes={**HOMES, LAMP: LAMP_HOMES},
    suits=SUITS,
    most=9,
)


RoomKind = Literal["kitchen", "livingroom", "bedroom", "bathroom"]
ROOM_KINDS: Final[tuple[RoomKind, ...]] = ("kitchen", "livingroom", "bedroom", "bathroom")

_TABLES = ("countertop", "diningtable", "coffeetable", "sidetable")
_HOUSE_DISHES = ("cabinet", *_TABLES, "sinkbasin", "shelf")
_HOUSE_CUTLERY = ("drawer", *_TABLES, "sinkbasin")
_POTS = ("stoveburner", "countertop", "cabinet", "diningtable", "sinkbasin", "fridge")
_HOUSE_FOOD = ("fridge", *_TABLES, "sinkbasin", "microwave", "garbagecan")
_SPICES = ("cabinet", "drawer", *_TABLES, "shelf")
_BOTTLES = ("cabinet", *_TABLES, "shelf", "desk", "dresser")
_HOUSE_PAPERS = ("desk", "sidetable", "drawer", "shelf", "dresser", *_TABLES[1:3], "bed", "sofa")
_SMALL = ("desk", "sidetable", "drawer", "dresser", "shelf", *_TABLES[:3], "safe", "sofa")
_SOFT = ("bed", "sofa", "armchair", "ottoman")
_SPORTS = ("bed", "desk", "dresser", "sofa", "armchair", "coffeetable", "ottoman")
_ORNAMENTS = ("shelf", "dresser", "sidetable", "coffeetable", "diningtable", "desk", "tvstand")
_HOUSE_WASHING = (
    "sinkbasin", "countertop", "cabinet", "drawer", "toilet", "cart", "shelf", "garbagecan",
)  # fmt: skip
_PAPER_ROLLS = (
    *("toilet", "toiletpaperhanger", "cabinet", "drawer", "countertop", "shelf", "cart"),
    *("garbagecan",),
)

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "mug": (*_HOUSE_DISHES, "coffeemachine", "microwave", "fridge", "desk"),
    "plate": (*_HOUSE_DISHES, "microwave", "fridge"),
    "apple": _HOUSE_FOOD,
    "potato": _HOUSE_FOOD,
    "book": _HOUSE_PAPERS,
    "knife": _HOUSE_CUTLERY,
    "cup": (*_HOUSE_DISHES, "microwave", "fridge"),
    "bowl": (*_HOUSE_DISHES, "microwave", "fridge", "dresser"),
    "tomato": _HOUSE_FOOD,
    "bread": (*_TABLES, "fridge", "microwave", "garbagecan"),
    "fork": _HOUSE_CUTLERY,
    "spoon": _HOUSE_CUTLERY,
    "pan": _POTS,
    "pot": _POTS,
    "pen": (*_HOUSE_PAPERS, "garbagecan"),
    "pencil": (*_HOUSE_PAPERS, "garbagecan"),
    "pillow": _SOFT,
    "egg": _HOUSE_FOOD,
    "lettuce": ("fridge", *_TABLES, "sinkbasin", "garbagecan"),
    "cloth": ("bathtubbasin", "laundryhamper", *_HOUSE_WASHING),
    "soapbar": ("bathtubbasin", *_HOUSE_WASHING),
    "newspaper": (*_HOUSE_PAPERS, "garbagecan"),
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
    "dishsponge": ("bathtubbasin", *_HOUSE_WASHING),
    "butterknife": _HOUSE_CUTLERY,
    "spatula": _HOUSE_CUTLERY,
    "ladle": (*_HOUSE_CUTLERY, "cabinet"),
    "kettle": ("stoveburner", "countertop", "cabinet", "diningtable", "sinkbasin"),
    "glassbottle": (*_BOTTLES, "fridge", "sinkbasin"),
    "winebottle": (*_BOTTLES, "fridge", "garbagecan"),
    "soapbottle": ("countertop", "toilet", "cabinet", "shelf", "drawer", "cart", "garbagecan"),
    "spraybottle": ("cabinet", "toilet", "countertop", "shelf", "cart", "garbagecan"),
    "toiletpaper": _PAPER_ROLLS,
    "handtowel": ("handtowelholder", "bathtubbasin", *_HOUSE_WASHING),
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
