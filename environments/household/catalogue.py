"""What there is in a household and what can be done with it: one closed list a set of rules.

`SIMPLE` are the rules of the small rooms: anything can be put anywhere. `house.ALFWORLD` are ALFWorld's rules. The engine,
the planner, the expert and the rewriter ask the catalogue of their world and know no list of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from environments.household.kinds import (
    HOMES,
    LAMP,
    LAMP_HOMES,
    OBJECTS,
    OPENABLE,
    RECEPTACLES,
    SUITS,
)

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
