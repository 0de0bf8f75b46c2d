"""The knobs: `Knobs` say what games are generated, `PlayOptions` how a game is put into words and answers are read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from environments.household.answers import Actions
from environments.household.house import ROOM_KINDS, RoomKind
from environments.household.kinds import GOAL_TYPES, MAX_PER_KIND, OBJECTS, RECEPTACLES, GoalType
from triforge.environments.answers import Answer


def _ordered(pair: list[int]) -> list[int]:
    if pair[0] > pair[1]:
        raise ValueError("the first number must not be above the second")
    return pair


def _known_objects(kinds: list[str]) -> list[str]:
    if unknown := sorted(set(kinds) - set(OBJECTS)):
        raise ValueError(f"unknown object kinds {unknown}, known are {', '.join(OBJECTS)}")
    return kinds


def _known_receptacles(kinds: list[str]) -> list[str]:
    if unknown := sorted(set(kinds) - set(RECEPTACLES)):
        raise ValueError(f"unknown receptacle kinds {unknown}, known are {', '.join(RECEPTACLES)}")
    return kinds


Span = Annotated[
    list[Annotated[int, Field(ge=0, le=32)]],
    Field(min_length=2, max_length=2),
    AfterValidator(_ordered),
]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Knobs(BaseModel):
    """What games are generated. Spans are `[lowest, highest]`, shares are probabilities in [0, 1].

    Attributes:
        rules: the simple rules of this class; `HouseKnobs` are those of ALFWorld.
        receptacles: how many receptacles a room has.
        per_kind: how many receptacles of one kind it may have.
        distractors: how many objects play no part in the goal.
        goals: goal types, drawn evenly; naming one twice doubles its share.
        objects: kinds of object in use.
        kinds: kinds of receptacle in use.
        openable_share: share of the receptacles beyond the needed ones that can be opened; None draws evenly over kinds.
        closed: share of the openable receptacles that start closed.
        duplicates: share of the distractors that come as a second copy of another one.
        lamps: share of the games without a lamp goal that have a lamp all the same.
        hint: share of the games whose instruction says where the object lies.
        horizon: steps until the episode ends as a failure.
        commands: how many commands the shortest plan has; None takes any plan within the horizon.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rules: Literal["simple"] = "simple"
    receptacles: Span = Field(default_factory=lambda: [5, 8])
    per_kind: int = Field(default=1, ge=1, le=MAX_PER_KIND)
    distractors: Span = Field(default_factory=lambda: [2, 5])
    goals: list[GoalType] = Field(default_factory=lambda: list(GOAL_TYPES), min_length=1)
    objects: Annotated[list[str], AfterValidator(_known_objects)] = Field(
        default_factory=lambda: list(OBJECTS), min_length=1
    )
    kinds: Annotated[list[str], AfterValidator(_known_receptacles)] = Field(
        default_factory=lambda: list(RECEPTACLES), min_length=1
    )
    openable_share: Share | None = None
    closed: Share = 1.0
    duplicates: Share = 0.2
    lamps: Share = 0.3
    hint: Share = 0.0
    horizon: int = Field(default=24, ge=1, le=1000)
    commands: Span | None = None


class HouseKnobs(BaseModel):
    """What games are generated under ALFWorld's rules.

    Attributes:
        rules: ALFWorld's.
        rooms: kinds of room; those in which the drawn goal can be pursued are equally likely.
        goals: goal types, drawn evenly; naming one twice doubles its share.
        receptacles: how many receptacles a room has, if it has as many.
        things: how many objects lie about, the goal's own included.
        copies: how many objects of one kind there may be.
        closed: share of the openable receptacles that start closed.
        lamps: share of the living rooms and bedrooms without a lamp goal that have a lamp all the same.
        second_phrase: share of the games that announce their goal by the second of its two sentences.
        horizon: steps until the episode ends as a failure.
        commands: how many commands the shortest plan has; None takes any plan within the horizon.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rules: Literal["alfworld"]
    rooms: list[RoomKind] = Field(default_factory=lambda: list(ROOM_KINDS), min_length=1)
    goals: list[GoalType] = Field(default_factory=lambda: list(GOAL_TYPES), min_length=1)
    receptacles: Span = Field(default_factory=lambda: [12, 24])
    things: Span = Field(default_factory=lambda: [8, 16])
    copies: int = Field(default=3, ge=1, le=9)
    closed: Share = 1.0
    lamps: Share = 0.3
    second_phrase: Share = 0.5
    horizon: int = Field(default=50, ge=1, le=1000)
    commands: Span | None = None


class PlayOptions(BaseModel):
    r"""How a game is put into words and how a response is read.

    Attributes:
        wording: full sentences, or single words for tiny models.
        actions: the response is a command's text, or its number in the list that the observation ends with.
        answer: which part of the response is the action: all of it, its last line that is not blank, or the content of
            its last `\boxed{}` or `<answer>` tag.
        guide: whether the episode starts with a system message that explains commands and answers (never in terse).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    wording: Literal["alfworld", "terse"] = "alfworld"
    actions: Actions = "text"
    answer: Answer = "whole"
    guide: bool = True
