"""The closed lists of the household: kinds of receptacles and objects, what one can do with them, and the six goals.

A kind is one lower-case word, the same in both wordings, so that one instruction serves people, large models and the
word-level vocabulary of tiny models.
"""

from __future__ import annotations

from typing import Final, Literal

GoalType = Literal["place", "look", "clean", "heat", "cool", "two"]

GOAL_TYPES: Final[tuple[GoalType, ...]] = ("place", "look", "clean", "heat", "cool", "two")
"""All goals, commonest first; the place in the list is the rank that "rarer" means in a rewrite."""

LAMP: Final = "desklamp"

OPENABLE: Final = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})

RECEPTACLES: Final[tuple[str, ...]] = (
    "cabinet",
    "drawer",
    "fridge",
    "microwave",
    "safe",
    "sinkbasin",
    "countertop",
    "stoveburner",
    "diningtable",
    "garbagecan",
    "shelf",
    "desk",
    "dresser",
    "sidetable",
    "bed",
    "sofa",
)

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
    "mug": _DISHES,
    "plate": _DISHES,
    "apple": _FOOD,
    "potato": _FOOD,
    "book": _PAPERS,
    "knife": _CUTLERY,
    "cup": _DISHES,
    "bowl": _DISHES,
    "tomato": _FOOD,
    "bread": _FOOD,
    "fork": _CUTLERY,
    "spoon": _CUTLERY,
    "pan": _PANS,
    "pen": _PAPERS,
    "pillow": _CUSHIONS,
    "egg": _FOOD,
    "lettuce": _FOOD,
    "cloth": _WASHING,
    "soapbar": _WASHING,
    "newspaper": _PAPERS,
    "cellphone": _VALUABLES,
    "keychain": _VALUABLES,
    "laptop": _PAPERS,
    "watch": _VALUABLES,
}
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
