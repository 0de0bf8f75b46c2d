"""The knobs: what games are generated or taken from files, and how they are played."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from environments.household.params import Actions, HouseKnobs
from triforge.environments.answers import Answer
from triforge.environments.parsing import Strict


class Knobs(HouseKnobs):
    """Which games: all knobs of the household under ALFWorld's rules, and three more.

    Attributes:
        source: games of the household's generator, or a user's game files (`goals`, `horizon` and `folder` choose them).
        folder: of the game files, relative to `ALFWORLD_DATA`.
        tries: how many games are drawn for one that the engine lets win.
    """

    rules: Literal["alfworld"] = "alfworld"
    source: Literal["generated", "files"] = "generated"
    folder: str = "json_2.1.1/train"
    tries: int = Field(default=20, ge=1, le=1000)


class PlayOptions(Strict):
    """How a game is played.

    Attributes:
        actions: the response is a command's text, or its number in the list that the observation ends with.
        answer: which part of the response is the action.
        guide: whether the episode starts with a system message that explains commands and answers.
        memo: whether the engine's process remembers what it computes again and again; the answers are the same.
    """

    actions: Actions = "text"
    answer: Answer = "whole"
    guide: bool = True
    memo: bool = True


class GameParams(Strict):
    """A task: `game` is a household game under ALFWorld's rules; or `file` names a game file, its bytes and the horizon."""

    game: dict[str, JsonValue] | None = None
    file: str | None = None
    sha256: str | None = None
    horizon: int | None = Field(default=None, ge=1, le=1000)
